package repair

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"example.com/videocatalog/internal/pg"
)

// entity is an aggregate type whose owner and projection are a table each, which have the same rows
// as jsonb. Each query reads one side, so the sides may be in two databases.
type entity struct {
	name        string // the aggregate type
	owner, view table
}

// entityOf returns an entity that cmd/entity made. Its tables have the same columns, but for the ids
// of its view, whose primary key is key. So a new field changes nothing here.
func entityOf(name, plural, key string, commands, queries *pgxpool.Pool) entity {
	const deleted, tombstone = "r.delete_time IS NOT NULL", "false"
	row := fmt.Sprintf("(to_jsonb(r) - '{%[1]s,event_id}'::text[]) || jsonb_build_object('id', r.%[1]s)", key)
	return entity{
		name:  name,
		owner: table{commands, "video_catalog." + plural, "id", "to_jsonb(r)", deleted, tombstone},
		view:  table{queries, "video_catalog_read." + name + "_projection", key, row, deleted, tombstone},
	}
}

// source implements projection.
func (e entity) source(whole bool) source {
	return source{
		name: e.name, pool: e.view.pool, owner: tableSide{e.owner, whole}, projection: tableSide{e.view, whole}, pending: pendingOf(e.owner.pool, e.name),
		look: func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
			found, _, err := e.differing(ctx, nil, ids, whole)
			return found, err
		},
	}
}

// unknown implements projection.
func (e entity) unknown(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	entries, err := e.view.find(ctx, nil, ids)
	if err != nil {
		return nil, err
	}
	owned, err := e.owner.find(ctx, nil, ids)
	return slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return entries[id].Version+owned[id].Version > 0 }), err
}

// differing returns the entries that differ, and the rows of their owner. In a transaction of the
// projection, it locks the entries first. A tombstone on one side only is not a
// difference: each side prunes its own. With whole, a tombstone that the projection lacks is one.
func (e entity) differing(ctx context.Context, tx *pg.Tx, ids []uuid.UUID, whole bool) (found map[uuid.UUID]seen, owned map[uuid.UUID]row, err error) {
	entries, err := e.view.find(ctx, tx, ids)
	if err != nil {
		return nil, nil, err
	}
	if owned, err = e.owner.find(ctx, nil, ids); err != nil {
		return nil, nil, err
	}
	found = make(map[uuid.UUID]seen)
	for _, id := range ids {
		want, was := owned[id], entries[id]
		s := seen{ownerVersion: want.Version, version: was.Version}
		if s.ownerVersion == s.version && s.version > 0 {
			if s.fields, err = differingFields(want.Content, was.Content); err != nil {
				return nil, nil, err
			}
		}
		pruned := s.ownerVersion == 0 && was.Deleted || s.version == 0 && want.Tombstone && !whole
		if (s.ownerVersion != s.version || len(s.fields) > 0) && !pruned {
			found[id] = s
		}
	}
	return found, owned, nil
}

// differingFields returns the names of the columns in which two rows differ.
func differingFields(a, b json.RawMessage) (names []string, err error) {
	left, err := columnsOf(a)
	right, other := columnsOf(b)
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if !bytes.Equal(left[name], right[name]) {
			names = append(names, name)
		}
	}
	return names, errors.Join(err, other)
}

func columnsOf(content json.RawMessage) (columns map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(content, &columns); err != nil {
		return nil, fmt.Errorf("decode a row: %w", err)
	}
	return columns, nil
}

// rewrite implements projection. The event of a row that a repair wrote has the id zero.
func (e entity) rewrite(ctx context.Context, tx *pg.Tx, ids []uuid.UUID) (map[uuid.UUID]seen, error) {
	found, owned, err := e.differing(ctx, tx, ids, true)
	if err != nil {
		return nil, err
	}
	var rows []json.RawMessage
	var locked, orphans []uuid.UUID
	for _, id := range ids {
		s, differs := found[id]
		switch {
		case !differs:
			continue
		case s.ownerVersion > 0:
			rows = append(rows, owned[id].Content)
		default:
			orphans = append(orphans, id)
		}
		if s.version > 0 {
			locked = append(locked, id)
		}
	}
	queue(ctx, tx, e.view.sql("UPDATE {table} SET delete_time = now() WHERE {key} = ANY ($1)"), orphans)
	if len(rows) == 0 {
		return found, nil
	}
	columns, err := columnsOf(rows[0])
	delete(columns, "id")
	sets := make([]string, 0, len(columns))
	for name := range columns {
		name = pgx.Identifier{name}.Sanitize()
		sets = append(sets, name+" = excluded."+name)
	}
	// A row that was not there is not locked: an event may have written it since. If a projector writes one now, PostgreSQL may
	// end a deadlock: the projector tries again, and this command can be run again.
	queue(ctx, tx, e.view.sql(`
		INSERT INTO {table} AS v
		SELECT n.*
		FROM unnest($1::jsonb[]) AS r (content)
		CROSS JOIN jsonb_populate_record(NULL::{table}, content || jsonb_build_object('{key}', content -> 'id', 'event_id', $3::uuid)) AS n
		ON CONFLICT ({key}) DO UPDATE
		SET event_id = excluded.event_id, `+strings.Join(sets, ", ")+`
		WHERE v.version < excluded.version OR v.{key} = ANY ($2)`), rows, locked, uuid.Nil)
	return found, err
}

// moveFuture implements projection: these rows have no transaction ids.
func (entity) moveFuture(context.Context) (more bool, err error) { return false, nil }
