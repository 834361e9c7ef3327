# SPDX-License-Identifier: Apache-2.0
#
# Makes a CSV file for the csv_replay receiver of one scrape of dcgm-exporter. A MIG slice is its GPU's
# UUID with its GPU_I_ID, such as GPU-aaaa/1. Usage: awk -v time=1740823200 -f dcgm-exporter.awk
BEGIN { print "time,metric,gpu,value" }
/^DCGM_/ {
	name = $0
	sub(/[{ ].*/, "", name)
	uuid = $0
	sub(/.*UUID="/, "", uuid)
	sub(/".*/, "", uuid)
	slice = $0
	if (sub(/.*GPU_I_ID="/, "", slice)) {
		sub(/".*/, "", slice)
		uuid = uuid "/" slice
	}
	value = $0
	sub(/.*} /, "", value)
	sub(/ .*/, "", value)
	print time "," name "," uuid "," value
}
