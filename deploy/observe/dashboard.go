package observe

import (
	"fmt"
	"strings"

	dashboards "google.golang.org/api/monitoring/v1"
)

// page is the source of the dashboard. Each section is on the left, on the right, or at the bottom.
type page struct {
	Title    string    `yaml:"title"`
	Sections []section `yaml:"sections"`
}

type section struct {
	Title  string  `yaml:"title"`
	Side   string  `yaml:"side"`
	Panels []panel `yaml:"panels"`
}

// panel is one chart. Each of its queries has the name of its only series, or the label that distinguishes its series.
type panel struct {
	Title   string  `yaml:"title"`
	Unit    string  `yaml:"unit"`
	Queries []query `yaml:"queries"`
}

type query struct {
	Expr   string `yaml:"expr"`
	Name   string `yaml:"name"`
	Legend string `yaml:"legend"`
}

// The grid has 48 columns, the most that Cloud Monitoring allows. A panel takes a quarter of the width.
const (
	gridWidth    = 48
	panelWidth   = 12
	panelHeight  = 14
	headerHeight = 4
)

func readPage(path string) (page, error) {
	var p page
	if err := readYAML(path, &p); err != nil {
		return page{}, err
	}
	for _, s := range p.Sections {
		if s.Side != "left" && s.Side != "right" && s.Side != "bottom" {
			return page{}, fmt.Errorf("%s: section %q: side is %q: write left, right or bottom", path, s.Title, s.Side)
		}
		for _, panel := range s.Panels {
			for _, q := range panel.Queries {
				if (q.Name == "") == (q.Legend == "") {
					return page{}, fmt.Errorf("%s: panel %q: query %q needs a name or a legend, and not both", path, panel.Title, q.Expr)
				}
			}
		}
	}
	return p, nil
}

// place is the position of a panel, or of a heading if panel is nil.
type place struct {
	title      string
	panel      *panel
	x, y, w, h int
}

// layout stacks the sections of each side. The bottom sections come below the longer side.
func (p page) layout() []place {
	var places []place
	next := map[string]int{} // the first free line of each side
	for _, side := range []string{"left", "right", "bottom"} {
		x, width := 0, gridWidth/2
		switch side {
		case "right":
			x = gridWidth / 2
		case "bottom":
			width = gridWidth
			next[side] = max(next["left"], next["right"])
		}
		for _, s := range p.Sections {
			if s.Side != side {
				continue
			}
			places = append(places, place{title: s.Title, x: x, y: next[side], w: width, h: headerHeight})
			next[side] += headerHeight
			column := 0
			for i := range s.Panels {
				if column == width {
					column = 0
					next[side] += panelHeight
				}
				places = append(places, place{s.Panels[i].Title, &s.Panels[i], x + column, next[side], panelWidth, panelHeight})
				column += panelWidth
			}
			next[side] += panelHeight
		}
	}
	return places
}

// cloud makes the dashboard of Cloud Monitoring. Its documentation has no legend template for a label with dots, so such a chart shows all labels.
func (p page) cloud(m metrics) (*dashboards.Dashboard, error) {
	d := &dashboards.Dashboard{DisplayName: p.Title, MosaicLayout: &dashboards.MosaicLayout{Columns: gridWidth}}
	for _, at := range p.layout() {
		w := &dashboards.Widget{Title: at.title}
		if at.panel == nil {
			w.Text = &dashboards.Text{Format: "MARKDOWN"}
		} else {
			w.XyChart = &dashboards.XyChart{YAxis: &dashboards.Axis{Label: at.panel.Unit, Scale: "LINEAR"}}
			for _, q := range at.panel.Queries {
				query, labels, err := m.otlp(q.Expr)
				if err != nil {
					return nil, fmt.Errorf("panel %q: query %q: %w", at.title, q.Expr, err)
				}
				legend := q.Name
				if q.Legend != "" {
					name, ok := labels[q.Legend]
					if !ok {
						return nil, fmt.Errorf("panel %q: legend %s is no label of query %q", at.title, q.Legend, q.Expr)
					}
					if !strings.Contains(name, ".") {
						legend = "${metric.labels." + name + "}"
					}
				}
				w.XyChart.DataSets = append(w.XyChart.DataSets, &dashboards.DataSet{
					PlotType: "LINE", TargetAxis: "Y1", LegendTemplate: legend,
					TimeSeriesQuery: &dashboards.TimeSeriesQuery{PrometheusQuery: query},
				})
			}
		}
		d.MosaicLayout.Tiles = append(d.MosaicLayout.Tiles, &dashboards.Tile{
			XPos: int64(at.x), YPos: int64(at.y), Width: int64(at.w), Height: int64(at.h), Widget: w,
		})
	}
	return d, nil
}
