#!/bin/sh
# Fetches the protos in this folder anew: README.md says from where. To update them, change a version here.
set -eu
google=6.0.1        # npm: google-proto-files
protovalidate=1.2.2 # Go: github.com/bufbuild/protovalidate

here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

# copy FROM TO FILE...: the folder TO then holds these files of the folder FROM, and no others.
copy() {
	from=$1 to=$2
	shift 2
	rm -rf "$to"
	for file; do
		mkdir -p "$to/$(dirname "$file")"
		cat "$from/$file" >"$to/$file" # not cp: files of the module cache are read-only
	done
}

npm pack --silent "google-proto-files@$google" >/dev/null
tar -xzf "google-proto-files-$google.tgz"
copy ./package "$here/googleapis" LICENSE \
	google/api/annotations.proto google/api/client.proto google/api/field_behavior.proto google/api/field_info.proto \
	google/api/http.proto google/api/launch_stage.proto google/api/resource.proto

# -json prints "Dir": "…", where the module is now.
module=$(go mod download -json "github.com/bufbuild/protovalidate@v$protovalidate" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
ln -s "$module/LICENSE" "$module/proto/protovalidate/buf" .
copy . "$here/protovalidate" LICENSE buf/validate/validate.proto
