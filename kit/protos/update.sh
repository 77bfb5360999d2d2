#!/bin/sh
# update.sh fetches the protos of Google and protovalidate, which api/proto imports, unchanged. The license of each folder lies in
# it. To update them, change a version here, run this, and then make generate.
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
mv package/LICENSE package/google
copy package/google "$here/google" LICENSE api/annotations.proto api/client.proto api/field_behavior.proto api/field_info.proto \
	api/http.proto api/launch_stage.proto api/resource.proto

# -json prints "Dir": "…", where the module is now.
module=$(go mod download -json "github.com/bufbuild/protovalidate@v$protovalidate" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
ln -s "$module/LICENSE" "$module/proto/protovalidate/buf/validate" .
copy . "$here/buf" LICENSE validate/validate.proto
