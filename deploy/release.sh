#!/usr/bin/env bash
# release.sh [--dry-run] SHAPE IMAGE PROJECT REGION
# release.sh [--dry-run] --rollback VERSION SHAPE PROJECT REGION
#
# Releases an image: it migrates, deploys a revision without traffic, tests it with a real client (smoke/), and sends the
# traffic to it. If a step fails, the script stops, and callers still get the old revision. It prints every command before
# it runs it. Run provision.sh first.
#
#   SHAPE       all: one service with every role; pools: a service and two worker pools
#   IMAGE       by digest: REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…
#   --dry-run   let Cloud Run validate the service and the existing pools; change nothing
#   --rollback  test the revision of an earlier version on the present schema, send the traffic to it, then deploy its
#               image to the job and the pools; the schema stays, and a version is only sure to run on the schema of the next
#
# Environment variables: SHARE, the percentage of traffic after which a release stops (default: 100; to go on, it prints the
# command); VERSION, the suffix of the revisions (default: the time, as 20060102-150405); SMOKE, the command
# that tests a revision (default: go run deploy/smoke); SMOKE_TOKEN, an identity token for it (default: gcloud creates one).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$here/lib.sh"

arguments=()
while [ $# -gt 0 ]; do
	case $1 in
	--dry-run) DRY_RUN=1 ;;
	--rollback)
		ROLLBACK=${2:-}
		if [ -z "$ROLLBACK" ]; then usage; fi
		shift
		;;
	-*) usage ;;
	*) arguments+=("$1") ;;
	esac
	shift
done
set -- "${arguments[@]}"
SHAPE=${1:-}
case $SHAPE in
all) pools=() ;;
pools) pools=(projector publisher) ;; # consumers of new events come before publishers
*) usage ;;
esac
[ -e "$here/run/$SHAPE.service.yaml" ] || fail "deploy/run has no manifests of the shape $SHAPE" "go run ./cmd/upgrade --with $SHAPE adds them"
shift
IMAGE=''
if [ -z "${ROLLBACK:-}" ]; then
	IMAGE=${1:-}
	shift || usage
	[[ $IMAGE =~ @sha256:[0-9a-f]{64}$ ]] || fail "IMAGE is \"$IMAGE\", want it by digest: NAME@sha256:…" "a tag may move; the push prints the digest"
fi
start "$@"
VERSION=${ROLLBACK:-${VERSION:-$(date -u +%Y%m%d-%H%M%S)}}
[[ $VERSION =~ ^[a-z0-9][a-z0-9-]{0,30}[a-z0-9]$ ]] || fail "VERSION is \"$VERSION\", want lower case letters, digits and dashes, at most 32" ""
revision=$SERVICE-$VERSION
SHARE=${SHARE:-100}
[[ $SHARE =~ ^([1-9][0-9]?|100)$ ]] || fail "SHARE is \"$SHARE\", want a percentage from 1 to 100" ""

# A hint that is added to the remedies of later steps.
BACK=''

# promote PERCENT: sends so much of the traffic to this version, and the rest to the previous one.
promote() {
	local to=$revision=$1
	if [ "$1" -lt 100 ]; then to+=,$previous=$((100 - $1)); fi
	change "is there such a revision? gcloud run revisions list --service=$SERVICE$BACK" \
		gcloud run services update-traffic "$SERVICE" --to-revisions="$to"
}

# try: tests the revision, which has the tag candidate, with deploy/smoke.
try() {
	local url audience smoke
	url=$(look "gcloud run services describe $SERVICE" gcloud run services describe "$SERVICE" \
		--flatten=status.traffic --format='value[separator=" "](status.traffic.tag,status.traffic.url)' | sed -n 's/^candidate //p')
	[ -n "$url" ] || fail "the revision $revision has no URL" "gcloud run services describe $SERVICE"
	if [ -z "${SMOKE_TOKEN:-}" ]; then
		# The audience is the URL of the service, even for a call of a revision by its tag:
		# https://cloud.google.com/run/docs/authenticating/service-to-service
		audience=$(look "gcloud run services describe $SERVICE" gcloud run services describe "$SERVICE" --format='value(status.url)')
		SMOKE_TOKEN=$(look "you need roles/iam.serviceAccountTokenCreator on this account, which may call the service (docs/deploy.md)$BACK" \
			gcloud auth print-identity-token --impersonate-service-account="$(email "$SERVICE-release")" --audiences="$audience" --include-email)
	fi
	export SMOKE_TOKEN
	smoke=(go run -C "$here/.." ./deploy/smoke)
	if [ -n "${SMOKE:-}" ]; then read -ra smoke <<<"$SMOKE"; fi
	change "the revision $revision gets no traffic; its log says more$BACK" "${smoke[@]}" "$url"
}

# Before anything changes, this also checks that gcloud has the command.
existing_pools=''
if [ "$SHAPE" = pools ]; then
	existing_pools=$(look "worker pools need a gcloud of April 2026 or newer (gcloud components update), and you roles/run.developer" \
		gcloud run worker-pools list --region="$REGION" --format='value(metadata.name)')
fi

if [ -n "${ROLLBACK:-}" ]; then
	# An older build may not run on the present schema, so it is tried before callers get it.
	change "is there such a revision? gcloud run revisions list --service=$SERVICE" \
		gcloud run services update-traffic "$SERVICE" --update-tags="candidate=$revision"
	BACK='; if the smoke test itself is what fails, try again with SMOKE=true'
	if [ -z "${DRY_RUN:-}" ]; then try; fi
	BACK=''
	promote 100
	IMAGE=$(look "is there such a revision? gcloud run revisions list --service=$SERVICE" \
		gcloud run revisions describe "$revision" --format='value(spec.containers[0].image)')
	# Commands of operators run in the job, so it gets the image of the version that serves.
	change "Cloud Run says above what it does not like" gcloud run jobs update "$SERVICE-migrate" --image="$IMAGE"
	if [ "$SHAPE" = all ]; then exit 0; fi
	# The pools get the old image, with a new revision. The order is the reverse of a release.
	pools=(publisher projector)
	VERSION=$(date -u +%Y%m%d-%H%M%S)
	pinned=$(look "is there such a revision? gcloud run revisions list --service=$SERVICE" \
		gcloud run revisions describe "$revision" --flatten='spec.containers[0].env[]' \
		--format='value[separator=" "](spec.containers[0].env.valueFrom.secretKeyRef.name,spec.containers[0].env.valueFrom.secretKeyRef.key)')
	command_version=$(sed -n "s/^$COMMAND_SECRET //p" <<<"$pinned")
	query_version=$(sed -n "s/^$QUERY_SECRET //p" <<<"$pinned")
else
	# Each revision names the versions of its secrets, so that a rotation takes effect with a release, and a roll-back undoes it.
	command_version=$(newest "$COMMAND_SECRET")
	query_version=$(newest "$QUERY_SECRET")
	migrate_version=$(newest "$MIGRATE_SECRET")
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# render NAME: fills in a manifest of run/, and prints the path of the result.
render() {
	sed -e "s|\${SERVICE}|$SERVICE|g" -e "s|\${VERSION}|$VERSION|g" -e "s|\${IMAGE}|$IMAGE|g" \
		-e "s|\${COMMAND_VERSION}|$command_version|g" -e "s|\${QUERY_VERSION}|$query_version|g" -e "s|\${MIGRATE_VERSION}|${migrate_version:-}|g" \
		-e "s|\${PROJECT}|$PROJECT|g" -e "s|\${REGION}|$REGION|g" "$here/run/$1.yaml" >"$work/$1.yaml"
	printf %s "$work/$1.yaml"
}

# replace FILE COMMAND…: applies a manifest. In a dry run, Cloud Run only validates it.
replace() {
	local file=$1
	shift
	if [ -n "${DRY_RUN:-}" ]; then
		look "Cloud Run says above what it does not like" gcloud "$@" replace "$file" --dry-run >&2
	else
		change "Cloud Run says above what it does not like; a revision that does not start: gcloud run revisions list, and its log$BACK" \
			gcloud "$@" replace "$file"
	fi
}

# deploy_pools: deploys the worker pools. They get no traffic, so they run the new image at once.
deploy_pools() {
	local pool file
	for pool in "${pools[@]}"; do
		file=$(render "pools.$pool")
		# gcloud 528 waits for the pool even after a validation, so without an existing pool it would never return.
		if [ -n "${DRY_RUN:-}" ] && ! has "$existing_pools" "$SERVICE-$pool"; then
			show gcloud run worker-pools replace "$file"
			continue
		fi
		replace "$file" run worker-pools
	done
}

if [ -n "${ROLLBACK:-}" ]; then
	deploy_pools
	exit 0
fi

# 1. Migrate the schema while the old version runs: every version runs on the schema of the next.
file=$(render migrate.job)
change "Cloud Run says above what it does not like" gcloud run jobs replace "$file"
change "the log of the job says why; the service still runs as it did" gcloud run jobs execute "$SERVICE-migrate" --wait

# 2. Deploy the worker pools.
if [ "$SHAPE" = pools ]; then
	BACK="; a pool that has the new image goes back with deploy/release.sh --rollback, and the version that has the traffic: gcloud run services describe $SERVICE"
fi
deploy_pools

# 3. Deploy the service. The traffic does not change, and the new revision gets its own URL.
file=$(render "$SHAPE.service")
existing=$(look "you need roles/run.developer" gcloud run services list --region="$REGION" --format='value(metadata.name)')
current=''
if has "$existing" "$SERVICE"; then
	current=$(look "you need roles/run.developer" gcloud run services describe "$SERVICE" \
		--flatten=status.traffic --format='value[separator=" "](status.traffic.revisionName,status.traffic.percent)')
fi
{
	echo '  traffic:'
	share=100 # for the first release: there is no other revision
	while read -r name percent; do
		if [ "${percent:-0}" -gt 0 ]; then
			printf '    - revisionName: %s\n      percent: %s\n' "$name" "$percent"
			share=0
		fi
	done <<<"$current"
	printf '    - revisionName: %s\n      percent: %s\n      tag: candidate\n' "$revision" $share
} >>"$file"
# During a canary the version with the most traffic is the one to go back to.
previous=$(sort -k 2,2nr <<<"$current" | sed -n "s/^\($SERVICE-[^ ]*\) [1-9].*/\1/p" | head -n 1)
rollback="deploy/release.sh --rollback ${previous#"$SERVICE-"} $SHAPE $PROJECT $REGION"
BACK=''
if [ -n "$previous" ] && [ "$SHAPE" = pools ]; then BACK="; the pools have its image, until: $rollback"; fi
replace "$file" run services
if [ -n "${DRY_RUN:-}" ]; then exit 0; fi

# 4. Test the new revision.
try

# 5. Send the traffic to it.
share=100
if [ -n "$previous" ]; then share=$SHARE; fi
promote "$share"
printf '%s: released %s\n' "$SCRIPT" "$VERSION" >&2
if [ "$share" -lt 100 ]; then printf '%s: it has %s %% of the traffic; to send it all: deploy/release.sh --rollback %s %s %s %s\n' "$SCRIPT" "$share" "$VERSION" "$SHAPE" "$PROJECT" "$REGION" >&2; fi
if [ -n "$previous" ]; then printf '%s: to go back: %s\n' "$SCRIPT" "$rollback" >&2; fi
