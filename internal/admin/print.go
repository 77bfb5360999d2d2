package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// ErrPartly means that an action could not change some items.
var ErrPartly = errors.New("some items are unchanged")

// Printer prints rows as a table, or as JSON, one object per line.
type Printer struct {
	table *tabwriter.Writer
	json  *json.Encoder // nil: as a table
	err   error         // the first one
}

// NewPrinter returns a printer of a table with the given columns, or of JSON.
func NewPrinter(w io.Writer, asJSON bool, columns ...string) *Printer {
	p := &Printer{table: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if asJSON {
		p.json = json.NewEncoder(w)
	} else if len(columns) > 0 {
		p.Line("%s", strings.Join(columns, "\t"))
	}
	return p
}

// Row prints a value as JSON, or the cells that a table has of it, if any.
func (p *Printer) Row(value any, cells ...string) {
	if p.json != nil {
		p.err = cmp.Or(p.err, p.json.Encode(value))
	} else if len(cells) > 0 {
		for i := range cells {
			cells[i] = OneLine(cells[i])
		}
		p.Line("%s", strings.Join(cells, "\t"))
	}
}

// OneLine returns a text with spaces for control characters. A message from elsewhere may have
// some: they would break the table, or command the terminal.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// Line prints a line of text, unless the output is JSON.
func (p *Printer) Line(format string, args ...any) {
	if p.json == nil {
		_, err := fmt.Fprintf(p.table, format+"\n", args...)
		p.err = cmp.Or(p.err, err)
	}
}

// End prints the rest of the table. It returns the first error of the output.
func (p *Printer) End() error { return cmp.Or(p.err, p.table.Flush()) }
