#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# dpkg says "upgrade" and rpm a number above 0 where another version follows.
case ${1:-} in
upgrade | failed-upgrade | [1-9]*) exit 0 ;;
esac
[ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ] || exit 0
systemctl disable --now gpu-collector-agent.service || :
