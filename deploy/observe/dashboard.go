package observe

import (
	"fmt"
	"strings"

	dashboards "google.golang.org/api/monitoring/v1"

	"example.com/videocatalog/internal/names"
)

// page is the source of the dashboards. Each section is on the left, on the right, or at the bottom.
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
	Cloud   bool    `yaml:"cloud"` // only in Cloud Monitoring
	Queries []query `yaml:"queries"`
}

type query struct {
	Expr   string `yaml:"expr"`
	Name   string `yaml:"name"`
	Legend string `yaml:"legend"`
}

// The grid is that of Grafana, with 24 columns. A panel takes a quarter of the width.
const (
	gridWidth    = 24
	panelWidth   = 6
	panelHeight  = 7
	headerHeight = 2
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
func (p page) layout(cloud bool) []place {
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
				if s.Panels[i].Cloud && !cloud {
					continue
				}
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

// cloud makes the dashboard of Cloud Monitoring, whose grid has twice as many columns. Its documentation does not say
// how the template of a legend names a label with dots. Without a template, a chart shows all labels.
func (p page) cloud(m metrics) (*dashboards.Dashboard, error) {
	d := &dashboards.Dashboard{DisplayName: p.Title, MosaicLayout: &dashboards.MosaicLayout{Columns: 2 * gridWidth}}
	for _, at := range p.layout(true) {
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
			XPos: int64(2 * at.x), YPos: int64(2 * at.y), Width: int64(2 * at.w), Height: int64(2 * at.h), Widget: w,
		})
	}
	return d, nil
}

// units are the names of units that Grafana can scale. It shows other units unchanged.
var units = map[string]string{"s": "s", "bytes": "bytes", "": "short"}

type object = map[string]any

// grafana makes the dashboard of Grafana, for any data source of type Prometheus.
func (p page) grafana() object {
	source := object{"type": "prometheus", "uid": "${datasource}"}
	var panels []object
	for i, at := range p.layout(false) {
		o := object{"id": i + 1, "gridPos": object{"x": at.x, "y": at.y, "w": at.w, "h": at.h}}
		panels = append(panels, o)
		if at.panel == nil {
			o["type"], o["title"] = "text", ""
			o["options"] = object{"mode": "markdown", "content": "### " + at.title}
			continue
		}
		var targets []object
		for j, q := range at.panel.Queries {
			legend := q.Name
			if q.Legend != "" {
				legend = "{{" + q.Legend + "}}"
			}
			targets = append(targets, object{
				"refId": string(rune('A' + j)), "datasource": source, "expr": q.Expr, "legendFormat": legend, "range": true,
			})
		}
		unit, ok := units[at.panel.Unit]
		if !ok {
			unit = "suffix: " + at.panel.Unit
		}
		o["type"], o["title"], o["datasource"], o["targets"] = "timeseries", at.title, source, targets
		o["fieldConfig"] = object{"defaults": object{"unit": unit, "min": 0}, "overrides": []object{}}
	}
	return object{
		"uid": names.Service(), "title": p.Title, "schemaVersion": 39, "editable": false, "refresh": "10s", "tags": []string{names.Service()},
		"time":   object{"from": "now-1h", "to": "now"},
		"panels": panels,
		"templating": object{"list": []object{{
			"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
		}}},
	}
}
