package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Printer prints rows as a table, or as JSON, one object per line.
type Printer struct {
	table *tabwriter.Writer
	json  bool
	err   error // the first one
}

// NewPrinter returns a printer of a table, or of JSON.
func NewPrinter(w io.Writer, asJSON bool) *Printer {
	return &Printer{table: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), json: asJSON}
}

// Row prints a value as JSON, or the cells that a table has of it, if any. A cell is one line: a
// text from elsewhere may have characters that command the terminal.
func (p *Printer) Row(value any, cells ...string) {
	if p.json {
		p.err = cmp.Or(p.err, json.NewEncoder(p.table).Encode(value))
		return
	}
	for i := range cells {
		cells[i] = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, cells[i])
	}
	if len(cells) > 0 {
		p.Line("%s", strings.Join(cells, "\t"))
	}
}

// Line prints a line of text, unless the output is JSON.
func (p *Printer) Line(format string, args ...any) {
	if !p.json {
		_, err := fmt.Fprintf(p.table, format+"\n", args...)
		p.err = cmp.Or(p.err, err)
	}
}

// End prints the rest of the table. It returns the first error of the output.
func (p *Printer) End() error { return cmp.Or(p.err, p.table.Flush()) }
