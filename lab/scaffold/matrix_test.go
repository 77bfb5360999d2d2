//go:build deep

package scaffold

import (
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/videocatalog/lab/entity"
	"example.com/videocatalog/lab/internal/clone"
)

func init() { deep = true }

// The whole matrix, in services with some of the options each, and with all of them. TestLean has two entities of it.
func TestMatrix(t *testing.T) {
	template := newTemplate(t, t.TempDir())
	sets := []string{"", "console,oidc", "cors,repair", "kafka", "reactions,replay", "console,cors,kafka,oidc,reactions,relay-http,repair,replay,tenancy,wal"}
	all := entity.Drawn(t, len(entity.Matrix()))
	for i, with := range sets {
		rows := all[i*len(all)/len(sets) : (i+1)*len(all)/len(sets)]
		t.Run(with, func(t *testing.T) {
			service := filepath.Join(t.TempDir(), "orders")
			args := append(slices.Clone(order), "--module", "github.com/acme/orders")
			if with != "" {
				args = append(args, "--with", with)
			}
			for j := range rows {
				rows[j].Tenant = strings.Contains(with, "tenancy")
			}
			newService(t, template, service, args...)
			addRows(t, service, rows)
			clone.Run(t, service, "make", "check")
			create := startDev(t, service)
			for _, row := range rows {
				row.Token = tokenFrom(t, create[4])
				row.Use(t, "http://"+create[2]+"/v1/")
			}
		})
	}
}

// tokenFrom gets a token from the issuer of cmd/dev. Without an issuer there is none.
func tokenFrom(t *testing.T, issuer string) string {
	t.Helper()
	if issuer == "" {
		return ""
	}
	response, err := http.Get(issuer)
	must(t, err)
	defer response.Body.Close()
	token, err := io.ReadAll(response.Body)
	must(t, err)
	return string(token)
}
