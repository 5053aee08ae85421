// Package plot draws line charts as SVG. A library for plots would bring a dozen modules for what these lines draw.
package plot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Chart is a line chart.
type Chart struct {
	Title string
	X, Y  string   // axis titles, with units
	Ticks []string // of x: the points are evenly apart, as powers of two are on a logarithmic axis
	Lines []Line
	LogY  bool
}

// Line is one line of a chart.
type Line struct {
	Name   string
	Values []float64 // one a tick; NaN leaves a gap
}

// Colours that people with the usual weaknesses of colour vision can tell apart (Okabe and Ito's), each with a dash of its
// own for print.
var (
	colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}
	dashes  = []string{"", "7 4", "2 3", "9 3 2 3", "12 4", "4 2"}
)

const (
	chartW, chartH               = 720, 420
	left, right, top, bottom     = 84, 24, 48, 96
	plotW, plotH                 = chartW - left - right, chartH - top - bottom
	gridColour, inkColour, paper = "#d9d9d9", "#222222", "#ffffff"
)

// SVG draws the chart.
func (c *Chart) SVG() string {
	var b strings.Builder
	text := func(x, y float64, anchor, more, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, more, escape(s))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" fill="%s">`+"\n", chartW, chartH, chartW, chartH, inkColour)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="%s"/>`+"\n", chartW, chartH, paper)
	text(left+plotW/2, 28, "middle", ` font-size="16" font-weight="bold"`, c.Title)
	lo, hi, marks := c.scale()
	at := func(v float64) float64 {
		if c.LogY {
			return top + plotH*(1-(math.Log10(v)-math.Log10(lo))/(math.Log10(hi)-math.Log10(lo)))
		}
		return top + plotH*(1-(v-lo)/(hi-lo))
	}
	for _, m := range marks {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/>`+"\n", left, left+plotW, at(m), at(m), gridColour)
		text(left-8, at(m)+4, "end", "", number(m))
	}
	step := float64(plotW) / float64(max(len(c.Ticks)-1, 1))
	for i, t := range c.Ticks {
		x := left + float64(i)*step
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`+"\n", x, x, top+plotH, top+plotH+5, inkColour)
		text(x, top+plotH+20, "middle", "", t)
	}
	fmt.Fprintf(&b, `<path d="M%d %dV%dH%d" fill="none" stroke="%s"/>`+"\n", left, top, top+plotH, left+plotW, inkColour)
	text(left+plotW/2, top+plotH+42, "middle", "", c.X)
	text(0, 0, "middle", fmt.Sprintf(` transform="translate(20 %d) rotate(-90)"`, top+plotH/2), c.Y)
	for i, l := range c.Lines {
		colour, dash := colours[i%len(colours)], dashes[i%len(dashes)]
		path, pen := "", "M"
		for k, v := range l.Values {
			if math.IsNaN(v) || c.LogY && v <= 0 {
				pen = "M"
				continue
			}
			x := left + float64(k)*step
			path += fmt.Sprintf("%s%.1f %.1f", pen, x, at(v))
			pen = "L"
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x, at(v), colour)
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", path, colour, dash)
		// The legend stands below the axis, where no line can cross it.
		lx, ly := float64(left+(i%4)*150), float64(chartH-28+(i/4)*18)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`+"\n", lx, lx+28, ly-4, ly-4, colour, dash)
		text(lx+34, ly, "start", "", l.Name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// scale chooses the ends of the y axis and its marks: from zero in steps of 1, 2 or 5, or in decades.
func (c *Chart) scale() (lo, hi float64, marks []float64) {
	least, most := math.Inf(1), 0.0
	for _, l := range c.Lines {
		for _, v := range l.Values {
			if !math.IsNaN(v) && v > 0 {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if most == 0 {
		least, most = 1, 1
	}
	if c.LogY {
		lo, hi = math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most)))
		if lo == hi {
			hi *= 10
		}
		for m := lo; m <= hi*1.001; m *= 10 {
			marks = append(marks, m)
			if hi/lo <= 100 { // few decades: marks between them
				for _, k := range []float64{2, 5} {
					if m*k < hi {
						marks = append(marks, m*k)
					}
				}
			}
		}
		return lo, hi, marks
	}
	step := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, k := range []float64{1, 2, 5, 10} {
		if step*k*6 >= most {
			step *= k
			break
		}
	}
	hi = step * math.Ceil(most/step)
	for i := 0; step*float64(i) <= hi*1.001; i++ {
		marks = append(marks, step*float64(i))
	}
	return 0, hi, marks
}

// number writes a mark without more digits than it needs.
func number(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}
