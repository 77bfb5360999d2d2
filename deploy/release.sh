#!/usr/bin/env bash
# release.sh [--dry-run] [--schedule] SHAPE IMAGE PROJECT REGION
# release.sh [--dry-run] --rollback VERSION SHAPE PROJECT REGION
#
# Releases an image: migrate, deploy without traffic, try the new revision with a real client (smoke/), then give it the
# traffic. When a step fails the ones behind it do not happen, and callers still get the old revision. It prints every
# command before it runs it. provision.sh comes first.
#
#   SHAPE       all: one service with every role; pools: a service and two worker pools; drain: a service, and a job that
#               publishes every minute
#   IMAGE       by digest: REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME@sha256:…
#   --dry-run   let Cloud Run validate the service, and the pools that are there already; change nothing
#   --schedule  for drain, once: let Cloud Scheduler start the job; takes a person who may grant roles/run.invoker on it
#   --rollback  give the traffic back to the revision of an earlier version, then the pools or the drain job its image; the schema
#               stays: every version runs on the schema of the next
#
# In the environment: VERSION, the suffix of the revisions (the time, as 20060102-150405);
# SMOKE, the command that tries a revision (go run deploy/smoke); SMOKE_TOKEN, an identity token for it (gcloud makes one).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$here/lib.sh"

arguments=()
while [ $# -gt 0 ]; do
	case $1 in
	--dry-run) DRY_RUN=1 ;;
	--schedule) SCHEDULE=1 ;;
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
pools) pools=(projector publisher) ;; # first who reads what is new, then who sends it
drain) pools=() ;;
*) usage ;;
esac
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

# What else helps when a step fails, because the loops have the new image by then.
BACK=''

# promote: all the traffic to this version.
promote() {
	change "is there such a revision? gcloud run revisions list --service=$SERVICE$BACK" \
		gcloud run services update-traffic "$SERVICE" --to-revisions="$revision=100"
}

if [ -n "${ROLLBACK:-}" ]; then
	promote
	if [ "$SHAPE" = all ]; then exit 0; fi
	# The pools get a new revision, of the old image, and the drain job that image; in the reverse of the order of a release.
	if [ "$SHAPE" = pools ]; then pools=(publisher projector); fi
	IMAGE=$(look "is there such a revision? gcloud run revisions list --service=$SERVICE" \
		gcloud run revisions describe "$revision" --format='value(spec.containers[0].image)')
	VERSION=$(date -u +%Y%m%d-%H%M%S)
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# render NAME: fills a manifest of run/ in, and prints the name of the result.
render() {
	sed -e "s|\${SERVICE}|$SERVICE|g" -e "s|\${VERSION}|$VERSION|g" -e "s|\${IMAGE}|$IMAGE|g" \
		-e "s|\${PROJECT}|$PROJECT|g" -e "s|\${REGION}|$REGION|g" "$here/run/$1.yaml" >"$work/$1.yaml"
	printf %s "$work/$1.yaml"
}

# replace FILE COMMAND…: lets Cloud Run have what the file says; in a dry run it only says whether it would.
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

# deploy_pools: who has no traffic runs at once.
deploy_pools() {
	local pool file existing=''
	if [ -n "${DRY_RUN:-}" ] && [ ${#pools[@]} -gt 0 ]; then
		existing=$(look "you need roles/run.developer" gcloud beta run worker-pools list --region="$REGION" --format='value(metadata.name)')
	fi
	for pool in "${pools[@]}"; do
		file=$(render "pools.$pool")
		# gcloud waits for a pool also when it has only validated it (528 does), and it waits for ever where there is none.
		if [ -n "${DRY_RUN:-}" ] && ! has "$existing" "$SERVICE-$pool"; then
			show gcloud beta run worker-pools replace "$file"
			continue
		fi
		replace "$file" beta run worker-pools
	done
}

# deploy_drain: the job, where it is part of the shape.
deploy_drain() {
	if [ "$SHAPE" != drain ]; then return; fi
	local file
	file=$(render drain.job)
	change "Cloud Run says above what it does not like" gcloud run jobs replace "$file"
}

if [ -n "${ROLLBACK:-}" ]; then
	deploy_pools
	deploy_drain
	exit 0
fi

# 1. The schema, first and beside what runs: every version runs on the schema of the next.
file=$(render migrate.job)
change "Cloud Run says above what it does not like" gcloud run jobs replace "$file"
change "the log of the job says why; the service still runs as it did" gcloud run jobs execute "$SERVICE-migrate" --wait

# 2. The loops.
if [ "$SHAPE" = pools ]; then
	BACK="; a pool that has the new image goes back with deploy/release.sh --rollback, and the version that has the traffic: gcloud run services describe $SERVICE"
fi
deploy_pools
deploy_drain
if [ "$SHAPE" = drain ]; then
	if [ -n "${SCHEDULE:-}" ]; then
		if [ -n "${DRY_RUN:-}" ]; then CREATED+=$'\n'$SERVICE-drain; fi # it may not be there yet
		bind "$SERVICE-drain" run jobs -- roles/run.invoker "serviceAccount:$(email "$SERVICE-scheduler")"
		scheduled=$(look "you need roles/cloudscheduler.admin" gcloud scheduler jobs list --location="$REGION" --format='value(name.basename())')
		if ! has "$scheduled" "$SERVICE-drain"; then
			change "you need roles/cloudscheduler.admin; is there Cloud Scheduler in $REGION?" \
				gcloud scheduler jobs create http "$SERVICE-drain" --location="$REGION" --schedule='* * * * *' --http-method=POST \
				--uri="https://run.googleapis.com/v2/projects/$PROJECT/locations/$REGION/jobs/$SERVICE-drain:run" \
				--oauth-service-account-email="$(email "$SERVICE-scheduler")"
		fi
	fi
fi

# 3. The service: the traffic stays where it is, and the new revision has a URL of its own.
file=$(render "$SHAPE.service")
existing=$(look "you need roles/run.developer" gcloud run services list --region="$REGION" --format='value(metadata.name)')
current=''
if has "$existing" "$SERVICE"; then
	current=$(look "you need roles/run.developer" gcloud run services describe "$SERVICE" \
		--flatten=status.traffic --format='value[separator=" "](status.traffic.revisionName,status.traffic.percent)')
fi
{
	echo '  traffic:'
	share=100 # of the first release, which has nobody to take it from
	while read -r name percent; do
		if [ "${percent:-0}" -gt 0 ]; then
			printf '    - revisionName: %s\n      percent: %s\n' "$name" "$percent"
			share=0
		fi
	done <<<"$current"
	printf '    - revisionName: %s\n      percent: %s\n      tag: candidate\n' "$revision" $share
} >>"$file"
previous=$(sed -n "s/^\($SERVICE-[^ ]*\) [1-9].*/\1/p" <<<"$current" | head -n 1)
rollback="deploy/release.sh --rollback ${previous#"$SERVICE-"} $SHAPE $PROJECT $REGION"
BACK=''
if [ -n "$previous" ] && [ "$SHAPE" = pools ]; then BACK="; the pools have its image, until: $rollback"; fi
if [ -n "$previous" ] && [ "$SHAPE" = drain ]; then BACK="; the drain job has its image, until: $rollback"; fi
replace "$file" run services
if [ -n "${DRY_RUN:-}" ]; then exit 0; fi

# 4. Try it: deploy/smoke calls what the service is for, and deletes what it made.
url=$(look "gcloud run services describe $SERVICE" gcloud run services describe "$SERVICE" \
	--flatten=status.traffic --format='value[separator=" "](status.traffic.tag,status.traffic.url)' | sed -n 's/^candidate //p')
[ -n "$url" ] || fail "the revision $revision has no URL" "gcloud run services describe $SERVICE"
if [ -z "${SMOKE_TOKEN:-}" ]; then
	# The audience is the service's URL also where a revision is called by its tag:
	# https://cloud.google.com/run/docs/authenticating/service-to-service
	audience=$(look "gcloud run services describe $SERVICE" gcloud run services describe "$SERVICE" --format='value(status.url)')
	SMOKE_TOKEN=$(look "you need roles/iam.serviceAccountTokenCreator on this account, which may call the service (docs/deploy.md)$BACK" \
		gcloud auth print-identity-token --impersonate-service-account="$(email "$SERVICE-release")" --audiences="$audience" --include-email)
fi
export SMOKE_TOKEN
smoke=(go run -C "$here/.." ./deploy/smoke)
if [ -n "${SMOKE:-}" ]; then read -ra smoke <<<"$SMOKE"; fi
change "the new revision $revision gets no traffic; its log says more$BACK" "${smoke[@]}" "$url"

# 5. The traffic.
promote
printf '%s: released %s\n' "$SCRIPT" "$VERSION" >&2
if [ -n "$previous" ]; then printf '%s: to go back: %s\n' "$SCRIPT" "$rollback" >&2; fi
