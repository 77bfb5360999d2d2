package entity

import (
	"errors"
	"slices"
	"strings"
)

// Tenants is the field of the tenant of a row, or none. Only the server sets it, and no message of a request has it.
func (e entity) Tenants() []field {
	if e.Tenant == 0 {
		return nil
	}
	return []field{{
		Name: "tenant_id", Type: typeTenant, Number: 7, Migration: e.Tenant, Required: e.Tenant == e.Migration,
		Comment: "The tenant, to whose callers it is visible.",
	}}
}

// Kept are the fields that rows and events have: the stored ones, and the tenant.
func (e entity) Kept() []field { return slices.Concat(e.Tenants(), e.Stored()) }

// FirstKept are the kept fields of the first migration.
func (e entity) FirstKept() []field { return ofMigration(e.Kept(), e.Migration) }

// TenantFirst begins the columns of an index of the first migration.
func (e entity) TenantFirst() string {
	if e.Tenant == 0 || e.Tenant != e.Migration {
		return ""
	}
	return "tenant_id, "
}

// Tenancy reports whether the service keeps tenants apart. Then its API calls have roles of their own.
func (e entity) Tenancy() bool { return e.names.HasTenancy }

// secured is a table with row security, and the beginning of the names of its roles.
type secured struct{ Table, Role string }

// Secured are the tables that get row security in this migration.
func (c columns) Secured() []secured {
	if c.Tenant != c.Number {
		return nil
	}
	schema := c.names.Schema
	view := secured{schema + "_read." + c.Name + "_projection", schema + "_read"}
	if c.Replica() {
		return []secured{view}
	}
	return []secured{{schema + "." + c.Plural, schema}, view}
}

// Opens reports whether this migration opens the tables to the roles of API calls.
func (c columns) Opens() bool { return c.CallsSince == c.Number }

// Calls is what the roles of API calls may do from this migration on.
func (c columns) Calls() (string, error) {
	text, err := c.names.execute("calls.sql", c)
	return strings.TrimSpace(string(text)), err
}

// tenantIndex is an index of a table whose rows got tenants later.
type tenantIndex struct{ Schema, Table, Name, Columns, Where string }

// tenantIndexes are the indexes of the lists. Each has a migration of its own, because it is built while the table is written.
func (e entity) tenantIndexes() (all []tenantIndex) {
	add := func(schema, table, name, columns, where string) {
		all = append(all, tenantIndex{schema, schema + "." + table, table + "_tenant" + name, "tenant_id, " + columns, where})
	}
	if !e.Replica() {
		add(e.names.Schema, e.Plural, "", "create_time, id", "")
		if len(e.States()) > 0 {
			add(e.names.Schema, e.Plural, "_state", "state, create_time, id", "")
		}
		for _, f := range e.Refs() {
			add(e.names.Schema, e.Plural, "_"+f.Column(), f.Column()+", create_time, id", "")
		}
	}
	add(e.names.Schema+"_read", e.Name+"_projection", "", "create_time, "+e.ID(), " WHERE delete_time IS NULL")
	return all
}

// addTenant gives tenants to the rows of an entity, from a migration on.
func (e *entity) addTenant(migration int) {
	e.Tenant = migration
	if migration == e.Migration {
		return
	}
	for _, index := range e.tenantIndexes() {
		next := e.made[len(e.made)-1] + 1
		e.made, e.TenantIndexes = append(e.made, next), append(e.TenantIndexes, constraint{index.Name, next})
	}
}

// checkTenant returns an error if nobody would set the tenant of a row, or if the option would take the table for one of tenants.
func (e entity) checkTenant() error {
	switch {
	case e.Tenant != 0 && !e.names.HasTenancy:
		return errors.New("--tenant needs the option tenancy: go run ./cmd/upgrade --with tenancy adds it; its README says how to lose tenants")
	case e.names.HasTenancy && e.ID() == "tenant_id":
		return errors.New("entity \"tenant\": its projection would have the column tenant_id, which the option tenancy needs: choose another name, such as customer")
	}
	return nil
}
