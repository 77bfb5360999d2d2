package db

import (
	"context"
	"io/fs"
	"log/slog"
)

// MigrateFS is Migrate with the files of other builds.
func MigrateFS(ctx context.Context, url string, files fs.FS, log *slog.Logger) (int, error) {
	return migrate(ctx, url, build{files}, log)
}
