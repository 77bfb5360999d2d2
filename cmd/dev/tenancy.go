package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"example.com/servicekit/dev"
	"example.com/servicekit/localissuer"
)

// tenancy has callers checked if a table has tenant_id: their tokens come from an issuer in this process.
func tenancy() dev.Part { return dev.Part{Prepare: prepareTenancy} }

func prepareTenancy(ctx context.Context, s *dev.Stack) error {
	const user = "video_catalog_dev_calls"
	calls, err := url.Parse(s.Database)
	if err != nil {
		return errors.New("DATABASE_URL must be a URL, such as postgres://user:password@host:5432/database")
	}
	calls.User = url.UserPassword(user, user)
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var used, made bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM information_schema.columns WHERE table_schema IN ('video_catalog', 'video_catalog_read')
		AND column_name = 'tenant_id'), to_regrole($1) IS NOT NULL`, user).Scan(&used, &made); err != nil || !used {
		return err
	}
	if !made {
		if _, err := conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %[1]s LOGIN PASSWORD '%[1]s' IN ROLE video_catalog_calls, video_catalog_read_calls", user)); err != nil {
			return fmt.Errorf("create the user of API calls: %w", err)
		}
	}
	issuer, err := localissuer.Start()
	if err != nil {
		return err
	}
	s.AtStop(issuer.Close)
	s.Show("tenants", "TOKEN=$(curl -s '"+issuer.URL+"/token?tenant=acme'), and in each call -H \"Authorization: Bearer ${TOKEN}\"")
	policy := filepath.Join(s.State, "policy.yaml")
	s.Set("TENANCY_DATABASE_URL="+calls.String(), "AUTH=oidc", "AUTH_POLICY_FILE="+policy, "AUTH_ISSUER="+issuer.URL, "AUTH_AUDIENCE="+localissuer.Audience)
	return os.WriteFile(policy, []byte(localissuer.Policy), 0o600)
}
