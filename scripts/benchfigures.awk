# SPDX-License-Identifier: Apache-2.0
#
# Prints figures from the output of `go test -bench`. The first file has a line
# for each figure: its name, the benchmark, the benchmark's unit, a factor or
# "/" and the benchmark to divide by, the figure's unit, and its limit, if any:
#
#	wire_diff_scan_ratio Wire/unchanged ns/op /Wire/decode x <=0.12
#
# Of several runs the best time counts, and the most allocations: on a shared
# machine other processes take caches and time.
BEGIN { CONVFMT = OFMT = "%.4g" }
/^#/ || NF == 0 { next }
NR == FNR { spec[++figures] = $0; next }
/^Benchmark/ {
	for (i = 3; i < NF; i += 2) {
		key = substr($1, 10) " " $(i + 1)
		if (!(key in value) || ($(i + 1) == "allocs/op" ? $i > value[key] : $i < value[key])) value[key] = $i + 0
	}
	next
}
# A figure has no exponent, and whole numbers are kept.
function number(v) { return v == int(v) || v >= 1000 ? sprintf("%.0f", v) : (v < 0.001 ? sprintf("%.7f", v) : v "") }
function of(bench, unit) {
	if ((bench " " unit) in value) return value[bench " " unit]
	print "benchfigures: Benchmark" bench " did not tell " unit > "/dev/stderr"
	lacks = missing = 1
	return 1
}
END {
	for (n = 1; n <= figures; n++) {
		split(spec[n], f, " ")
		lacks = 0
		v = of(f[2], f[3])
		v = f[4] ~ /^\// ? v / of(substr(f[4], 2), f[3]) : v * f[4]
		limit = substr(f[6], 3) + 0
		passes = f[6] ~ /^<=/ ? v <= limit : v >= limit
		if (!lacks) print "figure " f[1] " " number(v) " " f[5] (f[6] == "" ? "" : " limit " limit " " (passes ? "pass" : "short"))
	}
	exit missing
}
