package daemon

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Size is a number of bytes, written with a binary unit: 512, 64KiB, 1GiB.
type Size int64

// UnmarshalYAML parses "1GiB"; a bare number is bytes.
func (s *Size) UnmarshalYAML(node ast.Node) error {
	n, err := ParseSize(scalar(node))
	if err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: node.GetToken()}
	}
	*s = Size(n)
	return nil
}

func scalar(node ast.Node) string {
	if s, ok := node.(*ast.StringNode); ok {
		return s.Value
	}
	return node.String()
}

// MarshalText writes the largest binary unit that divides the size.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var units = []struct {
	name string
	n    int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.n == 0 {
			return strconv.FormatInt(int64(s)/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// ParseSize reads "4096", "64KiB", "1.5GiB"; K, M, G, T and KB mean the binary units too.
func ParseSize(in string) (int64, error) {
	t := strings.TrimSpace(in)
	i := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	num, unit := t, ""
	if i >= 0 {
		num, unit = t[:i], strings.TrimSpace(t[i:])
	}
	mult := int64(1)
	switch strings.ToLower(unit) {
	case "", "b":
	case "k", "kb", "kib":
		mult = 1 << 10
	case "m", "mb", "mib":
		mult = 1 << 20
	case "g", "gb", "gib":
		mult = 1 << 30
	case "t", "tb", "tib":
		mult = 1 << 40
	default:
		return 0, fmt.Errorf("%q is no size: use bytes or KiB, MiB, GiB, TiB", in)
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil {
		if n > (1<<62)/mult {
			return 0, fmt.Errorf("%q is too large a size", in)
		}
		return n * mult, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || f < 0 || f > float64(int64(1<<62)/mult) {
		return 0, fmt.Errorf("%q is no size: use bytes or KiB, MiB, GiB, TiB", in)
	}
	return int64(f * float64(mult)), nil
}

// Duration is a time.Duration written as "5s" or "2m".
type Duration time.Duration

// UnmarshalYAML parses "5s".
func (d *Duration) UnmarshalYAML(node ast.Node) error {
	v, err := time.ParseDuration(scalar(node))
	if err != nil || v < 0 {
		return &yaml.SyntaxError{Message: fmt.Sprintf("%q is no duration: write 500ms, 5s or 2m", scalar(node)), Token: node.GetToken()}
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }
