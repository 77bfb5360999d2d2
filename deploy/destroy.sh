#!/usr/bin/env bash
# destroy.sh [--dry-run] --yes PROJECT REGION
#
# Removes everything that provision.sh and release.sh created, with all events in Pub/Sub, all images, and the values of the
# secrets. The database, the enabled APIs and the logs stay. It can be run again: it skips what does not exist, and what
# belongs to a disabled API.
#
#   --dry-run  show what would be removed; remove nothing
#   --yes      required, because this cannot be undone
#
# The environment variable REPOSITORY is the repository of images. Default: the name of the service.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$here/lib.sh"

YES=''
arguments=()
for argument; do
	case $argument in
	--dry-run) DRY_RUN=1 ;;
	--yes) YES=1 ;;
	-*) usage ;;
	*) arguments+=("$argument") ;;
	esac
done
if [ -z "$YES" ] && [ -z "${DRY_RUN:-}" ]; then fail "this removes events, images and secrets for good" "say --yes, or first --dry-run"; fi
start "${arguments[@]}"

# remove LISTED NAME COMMAND…: runs COMMAND if NAME is a line of LISTED.
remove() {
	local listed=$1 name=$2
	shift 2
	if has "$listed" "$name"; then
		change "you need roles/owner, or the admin role of what is deleted here" "$@"
	fi
}
owner="you need roles/owner, or the viewer role of what is listed here"

found=$(missing_apis "$owner")
if [ -n "$found" ]; then
	mapfile -t missing <<<"$found"
	printf '%s: these APIs are off, and nothing is removed there: %s\n' "$SCRIPT" "${missing[*]}" >&2
	without "${missing[@]}"
fi

# First the services that use the rest.
listed=$(look "$owner" gcloud run services list --region="$REGION" --format='value(metadata.name)')
remove "$listed" "$SERVICE" gcloud run services delete "$SERVICE"
listed=$(look "worker pools need a gcloud of April 2026 or newer (gcloud components update); $owner" gcloud run worker-pools list --region="$REGION" --format='value(metadata.name)')
for name in "$SERVICE-publisher" "$SERVICE-projector"; do
	remove "$listed" "$name" gcloud run worker-pools delete "$name"
done
listed=$(look "$owner" gcloud run jobs list --region="$REGION" --format='value(metadata.name)')
remove "$listed" "$SERVICE-migrate" gcloud run jobs delete "$SERVICE-migrate"

listed=$(look "$owner" gcloud pubsub subscriptions list --format='value(name.basename())')
for name in "${SUBSCRIPTIONS[@]}" "${DEAD_LETTERS[@]}"; do
	remove "$listed" "$name" gcloud pubsub subscriptions delete "$name"
done
listed=$(look "$owner" gcloud pubsub topics list --format='value(name.basename())')
for name in "${TOPICS[@]}" "${DEAD_LETTERS[@]}"; do
	remove "$listed" "$name" gcloud pubsub topics delete "$name"
done
listed=$(look "$owner" gcloud pubsub schemas list --format='value(name.basename())')
for name in "${TOPICS[@]}"; do
	remove "$listed" "$name" gcloud pubsub schemas delete "$name"
done

listed=$(look "$owner" gcloud secrets list --format='value(name.basename())')
for name in "$COMMAND_SECRET" "$QUERY_SECRET" "$MIGRATE_SECRET" "$SERVICE-database-ca"; do
	remove "$listed" "$name" gcloud secrets delete "$name"
done

# A role on the project is not removed with its account.
release=serviceAccount:$(email "$SERVICE-release")
listed=$(look "$owner" gcloud projects get-iam-policy "$PROJECT" \
	--flatten='bindings[].members' --format='value[separator=" "](bindings.role,bindings.members)')
for role in roles/run.developer roles/run.invoker roles/logging.logWriter; do
	remove "$listed" "$role $release" \
		gcloud projects remove-iam-policy-binding "$PROJECT" --role="$role" --member="$release" --condition=None
done
for role in "${OBSERVED_ROLES[@]}"; do
	for account in "${OBSERVED[@]}"; do
		member=serviceAccount:$(email "$account")
		remove "$listed" "$role $member" \
			gcloud projects remove-iam-policy-binding "$PROJECT" --role="$role" --member="$member" --condition=None
	done
done
listed=$(look "$owner" gcloud iam service-accounts list --format='value(email)')
for account in "${ACCOUNTS[@]}"; do
	remove "$listed" "$(email "$account")" gcloud iam service-accounts delete "$(email "$account")"
done

listed=$(look "$owner" gcloud artifacts repositories list --location="$REGION" --format='value(name.basename())')
remove "$listed" "$REPOSITORY" gcloud artifacts repositories delete "$REPOSITORY" --location="$REGION"
