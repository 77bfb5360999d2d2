package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	catalogv1 "example.com/videocatalog/api/proto/catalog/v1"
	videov1 "example.com/videocatalog/api/proto/video/v1"
	"example.com/videocatalog/internal/app"
	"example.com/videocatalog/internal/pg/pgtest"
)

// nowhere is a database that cannot be reached.
const nowhere = "postgres://nobody@127.0.0.1:1/none"

// A process needs the databases of its roles only.
func TestRolesOpenOnlyTheirDatabases(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	for role, environ := range map[string][]string{
		"publisher": {"READ_DATABASE_URL=" + nowhere},
		"projector": {"DATABASE_URL=" + nowhere, "READ_DATABASE_URL=" + s.url},
	} {
		p := s.start(t, append(environ, "ROLES="+role, "TELEMETRY_ADDR=127.0.0.1:0")...) // it is ready
		if code, _ := get(t, "http://"+p.private(t)+"/metrics"); code != http.StatusOK {
			t.Errorf("%s: /metrics = %d, want 200", role, code)
		}
	}
	for _, environ := range [][]string{{"READ_DATABASE_URL=" + nowhere}, {"DATABASE_URL=" + nowhere, "READ_DATABASE_URL=" + s.url}} {
		if out, err := s.commandIn(t, environ, "status"); exitOf(err) != app.ExitFailed || strings.Contains(out, "pending") == strings.Contains(out, "quarantine") {
			t.Errorf("status without %s = %q, %v, want an error, and the other side", environ[0], out, err)
		}
	}
}

// An unavailable database makes its own side unavailable, and not the other.
func TestSidesAreReadyByThemselves(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	catalog := pgtest.URL(t)
	p := s.start(t, "READ_DATABASE_URL="+catalog)
	cfg, err := pgx.ParseConfig(pgtest.Direct(t, catalog))
	must(t, err)
	database := cfg.Database
	cfg.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), cfg)
	must(t, err)
	defer admin.Close(context.WithoutCancel(t.Context()))
	execute := func(sql string) {
		t.Helper()
		pgtest.Execute(t, admin, sql)
	}
	execute("ALTER DATABASE " + database + " ALLOW_CONNECTIONS false")
	end := func() {
		execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + database + "'")
	}
	ready := func() string {
		code, body := get(t, "http://"+p.addr+"/health/ready")
		return fmt.Sprint(code, " ", strings.TrimSpace(body))
	}
	eventually(t, 30*time.Second, "the catalog is unavailable", func() bool {
		end()
		return ready() == `200 {"commands":"ready","queries":"unavailable","status":"ready"}`
	})
	health := healthpb.NewHealthClient(p.conn)
	for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
		"": healthpb.HealthCheckResponse_SERVING, "video.v1.VideoService": healthpb.HealthCheckResponse_SERVING,
		"catalog.v1.CatalogService": healthpb.HealthCheckResponse_NOT_SERVING,
	} {
		eventually(t, 30*time.Second, fmt.Sprintf("Check(%q) = %v", service, want), func() bool {
			response, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return err == nil && response.GetStatus() == want
		})
	}
	if _, err := p.videos().CreateVideo(t.Context(), &videov1.CreateVideoRequest{Video: &videov1.Video{Title: "Ran"}}); err != nil {
		t.Errorf("CreateVideo() = %v", err)
	}
	eventually(t, 30*time.Second, "ListCatalogEntries() = Unavailable", func() bool {
		end() // again: the call before it may have missed a session that was starting
		_, err := p.catalog().ListCatalogEntries(t.Context(), &catalogv1.ListCatalogEntriesRequest{})
		return status.Code(err) == codes.Unavailable
	})
	execute("ALTER DATABASE " + database + " ALLOW_CONNECTIONS true")
	eventually(t, 30*time.Second, "the catalog is back by itself", func() bool {
		return ready() == `200 {"commands":"ready","queries":"ready","status":"ready"}`
	})
}
