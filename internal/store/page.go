package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/store/internal/sqlcgen"
)

// pageBytes is the size at which a page of a list ends, with the row that reaches it. It limits
// the memory of a list call whose client reads slowly, so that port.Config.MaxCalls such calls
// fit. A page may therefore have fewer items than the client requested (AIP-158).
const pageBytes = 256 << 10

// pager reads one page of a list. Its query must return one row more than the page has room for.
type pager struct {
	sqlcgen.DBTX
	size, bytes int
	more        bool // set by the query: more rows follow the page
}

// pageOver returns the pager of a page of at most size rows.
func pageOver(pool *pgxpool.Pool, size int) *pager {
	return &pager{DBTX: singly{pool}, size: size, bytes: pageBytes}
}

// queries returns the queries that read the page.
func (p *pager) queries() *sqlcgen.Queries { return sqlcgen.New(p) }

// maxRows is the LIMIT of the query.
func (p *pager) maxRows() int32 { return limit(p.size + 1) }

// Query implements sqlcgen.DBTX. Its rows end with the page.
func (p *pager) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := p.DBTX.Query(ctx, sql, args...)
	return &pageRows{rows, p}, err
}

type pageRows struct {
	pgx.Rows
	page *pager
}

func (r *pageRows) Next() bool {
	if !r.Rows.Next() {
		return false
	}
	if r.page.size == 0 || r.page.bytes <= 0 {
		r.page.more = true
		return false
	}
	r.page.size--
	for _, value := range r.RawValues() {
		r.page.bytes -= len(value)
	}
	return true
}
