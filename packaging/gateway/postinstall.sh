#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# After an upgrade the new version runs where the old one did. A first
# installation starts nothing: it has to be told its settings first.
[ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || :
systemctl try-restart gpu-collector-gateway.service || :
