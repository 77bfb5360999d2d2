package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pageBytes is the size at which a page of a list ends, with the row that reaches it. It limits
// the memory of a list call whose client reads slowly, so that transport.Config.MaxCalls such calls
// fit. A page may therefore have fewer items than the client requested (AIP-158).
const pageBytes = 256 << 10

// Page reads one page of a list: run a query on it. The query must return one row more than the
// page has room for.
type Page struct {
	DB
	Bytes int  // the size at which the page ends, with the row that reaches it
	More  bool // set by the query: more rows follow the page
	size  int
}

// NewPage returns a page of at most size rows.
func NewPage(pool *pgxpool.Pool, size int) *Page {
	return &Page{DB: Autocommit(pool), size: size, Bytes: pageBytes}
}

// MaxRows is the LIMIT of the query.
func (p *Page) MaxRows() int32 { return Limit(p.size + 1) }

// Query implements DB. Its rows end with the page.
func (p *Page) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := p.DB.Query(ctx, sql, args...)
	return p.Cut(rows), err
}

// Cut returns rows that end with the page.
func (p *Page) Cut(rows pgx.Rows) pgx.Rows { return &pageRows{rows, p} }

type pageRows struct {
	pgx.Rows
	page *Page
}

func (r *pageRows) Next() bool {
	if !r.Rows.Next() {
		return false
	}
	if r.page.size == 0 || r.page.Bytes <= 0 {
		r.page.More = true
		return false
	}
	r.page.size--
	for _, value := range r.RawValues() {
		r.page.Bytes -= len(value)
	}
	return true
}
