#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Cuts a node of kind off: nothing passes its network card. Usage: partition-kind.sh down|up NODE
set -eu
case $1 in
down) op=-I ;;
up) op=-D ;;
*) echo "partition-kind.sh: $1: it must be down or up" >&2 && exit 2 ;;
esac
docker exec "$2" sh -ec "iptables $op INPUT -i eth0 -j DROP; iptables $op OUTPUT -o eth0 -j DROP
  iptables $op FORWARD -i eth0 -j DROP; iptables $op FORWARD -o eth0 -j DROP"
