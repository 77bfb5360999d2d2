package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// svg is a picture under construction. Its background is white, whatever the page has.
type svg struct {
	strings.Builder
	width, height float64
}

var palette = []string{"#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774"}

func newSVG(width, height float64, title string) *svg {
	s := &svg{width: width, height: height}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12" fill="#37352f" role="img">`+"\n", width, height)
	fmt.Fprintf(s, `<title>%s</title><rect width="%g" height="%g" fill="#fff"/>`+"\n", html.EscapeString(title), width, height)
	s.text(12, 20, "start", `font-size="14" font-weight="bold"`, title)
	return s
}

func (s *svg) text(x, y float64, anchor, style, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, style, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

func (s *svg) legend(names []string) {
	x := 14.0
	for i, name := range names {
		fmt.Fprintf(s, `<rect x="%.1f" y="30" width="10" height="10" fill="%s"/>`, x, palette[i%len(palette)])
		s.text(x+14, 39, "start", "", name)
		x += 34 + 6.6*float64(len(name))
	}
}

func (s *svg) done() string { return s.String() + "</svg>\n" }

// series is a named list of values, one per label, with NaN for a missing one.
type series struct {
	name   string
	values []float64
}

// bars draws a group of horizontal bars per label, on a logarithmic axis.
func bars(title string, labels []string, all []series) string {
	const left, top, bar, gap = 130.0, 56.0, 13.0, 9.0
	group := float64(len(all))*bar + gap
	s := newSVG(760, top+group*float64(len(labels))+34, title)
	names := make([]string, len(all))
	low, high := math.Inf(1), math.Inf(-1)
	for i, one := range all {
		names[i] = one.name
		for _, v := range one.values {
			if v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	s.legend(names)
	if high < low {
		return s.done() // there is nothing to draw
	}
	low, high = math.Floor(math.Log10(low)-0.001), math.Ceil(math.Log10(high)+0.001)
	x := func(v float64) float64 { return left + (s.width-left-80)*(math.Log10(v)-low)/(high-low) }
	for e := low; e <= high; e++ {
		v := math.Pow(10, e)
		s.line(x(v), top-6, x(v), s.height-26, "#e3e2e0")
		s.text(x(v), s.height-10, "middle", `fill="#787774"`, short(v))
	}
	for l, label := range labels {
		y := top + group*float64(l)
		s.text(left-8, y+group/2, "end", "", label)
		for i, one := range all {
			if v := one.values[l]; v > 0 {
				at := y + bar*float64(i)
				fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%g" fill="%s"/>`, left, at, max(1, x(v)-left), bar-2, palette[i%len(palette)])
				s.text(max(left+1, x(v))+4, at+bar-3, "start", `font-size="10"`, short(v))
			}
		}
	}
	return s.done()
}

// short writes a number with two or three significant digits.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 999_500:
		return trim(v/1e6, 3) + "M"
	case v >= 9995:
		return trim(v/1e3, 3) + "k"
	}
	return trim(v, 3)
}

func trim(v float64, digits int) string {
	decimals := max(0, digits-1-int(math.Floor(math.Log10(v))))
	text := fmt.Sprintf("%.*f", decimals, v)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
