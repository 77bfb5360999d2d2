package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
)

// console makes the page for the console of Prometheus (--web.console.templates), from the template
// in a file.
func (p page) console(path string) ([]byte, error) {
	t, err := template.ParseFiles(path)
	if err != nil {
		return nil, fmt.Errorf("read template: %w", err)
	}
	type item struct {
		Title, Unit, Queries, Graph string
		Column, Row, Width, Height  int
	}
	var items []item
	for _, at := range p.layout(false) {
		i := item{Title: at.title, Column: at.x + 1, Row: at.y + 1, Width: at.w, Height: at.h}
		if at.panel != nil {
			queries, err := json.Marshal(at.panel.Queries)
			if err != nil {
				return nil, fmt.Errorf("encode queries of %s: %w", at.title, err)
			}
			graph := url.Values{}
			for n, q := range at.panel.Queries {
				graph.Set(fmt.Sprintf("g%d.expr", n), q.Expr)
				graph.Set(fmt.Sprintf("g%d.tab", n), "0")
			}
			i.Unit, i.Queries, i.Graph = at.panel.Unit, string(queries), "../graph?"+graph.Encode()
		}
		items = append(items, i)
	}
	var out bytes.Buffer
	if err := t.Execute(&out, map[string]any{"Title": p.Title, "Columns": gridWidth, "Places": items}); err != nil {
		return nil, fmt.Errorf("make console: %w", err)
	}
	if n := bytes.Index(out.Bytes(), []byte("{{")); n >= 0 {
		return nil, fmt.Errorf("make console: Prometheus would take this for a template: %.40s", out.Bytes()[n:])
	}
	return out.Bytes(), nil
}
