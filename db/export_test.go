package db

// MigrateFS is Migrate with the files of other builds.
var MigrateFS = migrate
