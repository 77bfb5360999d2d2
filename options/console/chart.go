package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// The size of a chart in its own units. It stretches to the size of its place.
const (
	chartWidth  = 180 // one unit is a bucket
	chartHeight = 40
	bucket      = idleAfter / chartWidth
)

// chart is a chart of 15 minutes: one area and one or two lines.
type chart struct {
	Name        string // for those who do not see it
	Area        string // path data
	Line, Above string // the same; Above is the line of a second value
	Most        string // the highest value
}

// newChart draws one or two values of points. The window ends with the last point. A time
// without points stays empty.
func newChart(name string, points []Point, format func(float64) string, values ...func(Point) float64) chart {
	c := chart{Name: name, Most: "–"}
	if len(points) == 0 {
		return c
	}
	end := points[len(points)-1].Time.Truncate(bucket).Add(bucket)
	columns := make([][]float64, len(values))
	most := math.NaN()
	for i, value := range values {
		columns[i] = bucketsOf(points, end, value)
		for _, v := range columns[i] {
			if !math.IsNaN(v) && !(v <= most) { // true for NaN, too
				most = v
			}
		}
	}
	if math.IsNaN(most) {
		return c
	}
	c.Most = format(most)
	c.Line, c.Area = draw(columns[0], most)
	if len(columns) > 1 {
		c.Above, _ = draw(columns[1], most)
	}
	return c
}

// bucketsOf returns the highest value in each bucket of the window; NaN if there is none.
func bucketsOf(points []Point, end time.Time, value func(Point) float64) []float64 {
	column := make([]float64, chartWidth)
	for i := range column {
		column[i] = math.NaN()
	}
	for _, p := range points {
		i := chartWidth - 1 - int((end.Sub(p.Time)-1)/bucket)
		if v := value(p); i >= 0 && i < chartWidth && !math.IsNaN(v) && !(v <= column[i]) {
			column[i] = v
		}
	}
	return column
}

// bridged is how many empty buckets a line crosses: samples that take long are rare.
const bridged = 2

// draw returns the path of a line, and of the area below it.
func draw(column []float64, most float64) (line, area string) {
	var lines, areas strings.Builder
	for i := 0; i < len(column); i++ {
		if math.IsNaN(column[i]) {
			continue
		}
		begin := i
		for ; i < len(column) && !allNaN(column[i:min(len(column), i+bridged+1)]); i++ {
			if math.IsNaN(column[i]) {
				continue
			}
			verb := "L"
			if i == begin {
				verb = "M"
			}
			y := chartHeight - 1.0
			if most > 0 {
				y -= column[i] / most * (chartHeight - 3)
			}
			fmt.Fprintf(&lines, "%s%d %.1f", verb, i, y)
			if i == begin {
				fmt.Fprintf(&areas, "M%d %d", i, chartHeight)
			}
			fmt.Fprintf(&areas, "L%d %.1f", i, y)
		}
		fmt.Fprintf(&lines, "h1")
		fmt.Fprintf(&areas, "h1V%dZ", chartHeight)
	}
	return lines.String(), areas.String()
}

func allNaN(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) })
}

// The charts, as the parts use them.

func (s snapshot) ChartCommands() chart {
	return newChart("Commands a second", s.Points, perSecond, func(p Point) float64 { return p.Commands })
}

func (s snapshot) ChartPending() chart {
	return newChart("Pending events", s.Points, count, func(p Point) float64 { return p.Pending })
}

func (s snapshot) ChartOldest() chart {
	return newChart("Age of the oldest pending event", s.Points, seconds, func(p Point) float64 { return p.Oldest })
}

func (s snapshot) ChartSent() chart {
	return newChart("Events sent a second", s.Points, perSecond, func(p Point) float64 { return p.Sent })
}

func (s snapshot) ChartLag() chart {
	return newChart("Lag, median and 99 %", s.Points, seconds, func(p Point) float64 { return p.P50 }, func(p Point) float64 { return p.P99 })
}

func (s snapshot) ChartApplied() chart {
	return newChart("Events applied a second", s.Points, perSecond, func(p Point) float64 { return p.Applied })
}
