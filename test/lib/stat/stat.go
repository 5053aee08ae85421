// Package stat says how sure a mean of a few measurements is.
package stat

import "math"

// student is the 97.5th percentile of Student's t by degrees of freedom, from 1.
var student = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
	2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042}

// Interval is the geometric mean of values whose logarithms are given, with its 95 % interval (Student's t), which one value alone does not have: its
// low is 0 and its high infinite.
func Interval(logs []float64) (mean, low, high float64) {
	n := float64(len(logs))
	sum := 0.0
	for _, v := range logs {
		sum += v
	}
	m := sum / n
	if len(logs) < 2 {
		return math.Exp(m), 0, math.Inf(1)
	}
	sq := 0.0
	for _, v := range logs {
		sq += (v - m) * (v - m)
	}
	t := 1.96
	if df := len(logs) - 1; df <= len(student) {
		t = student[df-1]
	}
	d := t * math.Sqrt(sq/(n-1)/n)
	return math.Exp(m), math.Exp(m - d), math.Exp(m + d)
}
