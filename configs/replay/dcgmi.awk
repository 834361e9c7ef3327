# SPDX-License-Identifier: Apache-2.0
#
# Makes a CSV file for the csv_replay receiver of `dcgmi dmon -e 155,150,203 -d 1000`. dcgmi writes no
# time: it grows by `every` seconds per round. Usage: awk -v every=1 -f dcgmi.awk
/^#Entity/ && !header {
	printf "time,gpu"
	for (i = 2; i <= NF; i++) printf ",%s", $i
	print ""
	header = 1
}
$1 == "GPU" {
	if ($2 in seen) {
		split("", seen)
		time += every
	}
	seen[$2]
	printf "%s,%s", time + 0, $2
	for (i = 3; i <= NF; i++) printf ",%s", $i
	print ""
}
