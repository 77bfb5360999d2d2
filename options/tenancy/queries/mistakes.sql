-- Runs as the user of calls. $1 is the user of the loops, and $2 their database.
WITH me AS (
	SELECT r.oid, r.rolname FROM pg_roles r WHERE r.rolname = current_user
), loops AS (
	SELECT r.oid, r.rolname FROM pg_roles r WHERE r.rolname = $1::text
), tenants AS (
	SELECT c.oid, c.oid::regclass AS name, c.relowner, c.relrowsecurity AND c.relforcerowsecurity AS forced
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace::regnamespace::text IN ('video_catalog', 'video_catalog_read') AND c.relkind IN ('r', 'p')
		AND a.attname = 'tenant_id' AND NOT a.attisdropped
), policies AS (
	SELECT p.polrelid, p.polname, roles.oid AS role,
		p.polpermissive AND p.polcmd = '*' AND coalesce(checked.expr, shown.expr) = shown.expr AS whole, shown.expr
	FROM pg_policy p
	CROSS JOIN LATERAL unnest(p.polroles) roles (oid)
	CROSS JOIN LATERAL pg_get_expr(p.polqual, p.polrelid) shown (expr)
	CROSS JOIN LATERAL pg_get_expr(p.polwithcheck, p.polrelid) checked (expr)
), applied AS ( -- the role 0 is PUBLIC; a member without INHERIT can still SET ROLE
	SELECT p.*, p.expr = '(tenant_id = current_setting(''app.tenant''::text, true))' AS tenant, p.expr = 'true' AS everything,
		p.role = 0 OR pg_has_role(me.oid, p.role, 'MEMBER') AS calls,
		p.role = 0 OR pg_has_role(loops.oid, p.role, 'USAGE') AS loops
	FROM policies p, me, loops
)
SELECT format('calls use the database %s, and loops use %s: TENANCY_DATABASE_URL must name the database of DATABASE_URL, and TENANCY_READ_DATABASE_URL the one of READ_DATABASE_URL', c.database, $2::text)
FROM (SELECT current_database() || ' of the server ' || system_identifier AS database FROM pg_control_system()) c WHERE c.database <> $2
UNION ALL
SELECT format('the user %I of TENANCY_DATABASE_URL is, or can become, the superuser %I', me.rolname, r.rolname)
FROM me, pg_roles r WHERE r.rolsuper AND pg_has_role(me.oid, r.oid, 'MEMBER')
UNION ALL
SELECT format('the user %I of TENANCY_DATABASE_URL is, or can become, %I, who has BYPASSRLS or CREATEROLE', me.rolname, r.rolname)
FROM me, pg_roles r WHERE (r.rolbypassrls OR r.rolcreaterole) AND NOT r.rolsuper AND pg_has_role(me.oid, r.oid, 'MEMBER')
UNION ALL
SELECT format('the user %I of TENANCY_DATABASE_URL is, or can become, %I, as whom the loops see all tenants', me.rolname, loops.rolname)
FROM me, loops WHERE pg_has_role(me.oid, loops.oid, 'MEMBER')
UNION ALL
SELECT format('the user %I of TENANCY_DATABASE_URL is, or can become, the owner of %s', me.rolname, t.name)
FROM me, tenants t WHERE pg_has_role(me.oid, t.relowner, 'MEMBER')
UNION ALL
SELECT format('the policy %I of %s opens other tenants to the user %I of TENANCY_DATABASE_URL', a.polname, t.name, me.rolname)
FROM me, tenants t JOIN applied a ON a.polrelid = t.oid WHERE a.calls AND (a.tenant AND a.whole) IS NOT TRUE -- an expression may be NULL
UNION ALL
SELECT format('the view %s shows all tenants to the user %I of TENANCY_DATABASE_URL: set its security_invoker, or revoke its rights', c.oid::regclass, me.rolname)
FROM me, pg_class c
WHERE c.relnamespace::regnamespace::text IN ('video_catalog', 'video_catalog_read') AND c.relkind IN ('v', 'm')
	AND (has_any_column_privilege(me.oid, c.oid, 'SELECT, INSERT, UPDATE') OR has_table_privilege(me.oid, c.oid, 'DELETE'))
	AND NOT coalesce((SELECT o.option_value::bool FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'security_invoker'), false)
UNION ALL
SELECT format('%s has tenant_id and no row security: ENABLE and FORCE it', t.name) FROM tenants t WHERE NOT t.forced
UNION ALL
SELECT format('%s lacks the policy of calls: USING (tenant_id = current_setting(''app.tenant'', true)) for a role of %I', t.name, me.rolname)
FROM me, tenants t WHERE has_table_privilege(me.oid, t.oid, 'SELECT')
	AND NOT EXISTS (SELECT FROM applied a WHERE a.polrelid = t.oid AND a.calls AND a.tenant AND a.whole)
UNION ALL
SELECT format('%s lacks the policy of the loops: USING (true) for a role of %I', t.name, loops.rolname)
FROM loops, tenants t WHERE has_table_privilege(loops.oid, t.oid, 'SELECT')
	AND NOT EXISTS (SELECT FROM applied a WHERE a.polrelid = t.oid AND a.loops AND a.everything AND a.whole)
UNION ALL
SELECT format('%s lacks the policy of its owner: USING (true) for %I, else migrations and functions see no rows', t.name, r.rolname)
FROM tenants t JOIN pg_roles r ON r.oid = t.relowner
WHERE NOT EXISTS (SELECT FROM applied a WHERE a.polrelid = t.oid AND pg_has_role(t.relowner, a.role, 'USAGE') AND a.everything AND a.whole)
