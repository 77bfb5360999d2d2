# Functions for the scripts in this directory, which source this file.
# shellcheck shell=bash disable=SC2034 # the scripts use what this file sets

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
	printf 'bash %s is too old: want 4.4 or newer; on macOS: brew install bash\n' "$BASH_VERSION" >&2
	exit 1
fi

# This sets SERVICE, TOPICS, SCHEMA_FILES, SUBSCRIPTIONS and REMOTE_TOPICS.
# shellcheck source=names.sh
. "$here/names.sh"
REPOSITORY=${REPOSITORY:-$SERVICE} # in Artifact Registry; destroy.sh removes it

# The dead-letter topics. Each has a subscription of the same name.
DEAD_LETTERS=("${SUBSCRIPTIONS[@]/%/.dead}")

# The secrets, each one a database URL.
COMMAND_SECRET=$SERVICE-database-url
QUERY_SECRET=$SERVICE-read-database-url
MIGRATE_SECRET=$SERVICE-migrate-database-url

# The service accounts. The shape "all" has one for all roles, and "pools" one per role. migrate and release are for the job
# and for releases. No account has a key.
ACCOUNTS=("$SERVICE" "$SERVICE-api" "$SERVICE-publisher" "$SERVICE-projector" "$SERVICE-migrate" "$SERVICE-release")

SCRIPT=$(basename "$0")

usage() {
	# Prints the comment at the start of the script.
	sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

fail() {
	printf '%s: %s\n' "$SCRIPT" "$1" >&2
	if [ -n "${2:-}" ]; then printf 'remedy: %s\n' "$2" >&2; fi
	exit 1
}

show() {
	{ printf '+' && printf ' %q' "$@" && printf '\n'; } >&2
}

# The accounts that run the service, and the roles with which they send traces and metrics to telemetry.googleapis.com.
OBSERVED=("$SERVICE" "$SERVICE-api" "$SERVICE-publisher" "$SERVICE-projector")
OBSERVED_ROLES=(roles/telemetry.tracesWriter roles/telemetry.metricsWriter)

# The APIs that the project needs.
APIS=(artifactregistry cloudbuild cloudtrace iam iamcredentials monitoring pubsub run secretmanager telemetry)

# The command groups of gcloud whose API is disabled, one per line. look skips their commands.
OFF=''

# missing_apis REMEDY: prints the disabled ones of APIS, one per line.
missing_apis() {
	local enabled api
	enabled=$(look "$1" gcloud services list --enabled --format='value(config.name)') || return 1
	for api in "${APIS[@]}"; do
		has "$enabled" "$api.googleapis.com" || printf '%s\n' "$api"
	done
}

# without API…: makes look skip the commands of these APIs.
without() {
	local api
	for api; do
		case $api in
		artifactregistry) OFF+=$'\n'artifacts ;;
		secretmanager) OFF+=$'\n'secrets ;;
		*) OFF+=$'\n'$api ;;
		esac
	done
}

# look REMEDY COMMAND…: runs a command that only reads, also in a dry run.
look() {
	local remedy=$1 group=$3
	shift
	show "$@"
	if has "$OFF" "$group"; then return; fi
	"$@" || fail "this command failed: $*" "$remedy"
}

# change REMEDY COMMAND…: runs a command that changes something. A dry run only shows it.
change() {
	local remedy=$1
	shift
	show "$@"
	if [ -n "${DRY_RUN:-}" ]; then return; fi
	"$@" >&2 || fail "this command failed: $*" "$remedy"
}

# has LINES LINE: reports whether LINE is one of LINES.
has() {
	grep -qxF -- "$2" <<<"$1"
}

# newest SECRET: prints the number of the newest enabled version of a secret.
newest() {
	local version
	# --limit would apply before the filter.
	version=$(look "you need roles/secretmanager.viewer on the secret: run provision.sh again" \
		gcloud secrets versions list "$1" --filter=state=ENABLED --sort-by=~createTime --format='value(name.basename())') || return 1
	[ -n "$version" ] || fail "the secret $1 has no enabled version" "docs/deploy.md, step 4"
	printf %s "${version%%$'\n'*}"
}

# email NAME: prints the e-mail address of a service account.
email() {
	printf '%s@%s.iam.gserviceaccount.com' "$1" "$PROJECT"
}

# bind RESOURCE COMMAND… -- ROLE MEMBER [ROLE MEMBER]…: grants roles on a resource that are not granted yet. COMMAND is the
# command group of gcloud, such as "pubsub topics".
bind() {
	local resource=$1 granted role member
	shift
	local command=()
	while [ "$1" != -- ]; do
		command+=("$1")
		shift
	done
	shift
	granted=''
	# A resource that this run has created has no policy yet. In a dry run it does not even exist.
	if ! has "$CREATED" "$resource"; then
		granted=$(look "you need a role that may read the policy, such as roles/owner" \
			gcloud "${command[@]}" get-iam-policy "$resource" "${LOCATION[@]}" \
			--flatten='bindings[].members' --format='value[separator=" "](bindings.role,bindings.members)')
	fi
	while [ $# -gt 0 ]; do
		role=$1 member=$2
		shift 2
		if ! has "$granted" "$role $member"; then
			change "you need a role that may set the policy, such as roles/owner; an account made a second ago may not be known yet: run this again" \
				gcloud "${command[@]}" add-iam-policy-binding "$resource" "${LOCATION[@]}" --role="$role" --member="$member" "${CONDITION[@]}" --format=none
		fi
	done
}

# More flags for the commands of bind.
LOCATION=() CONDITION=()

# Names of the resources that this run has created, one per line.
CREATED=''

# create NAME REMEDY COMMAND…: runs a change that creates NAME.
create() {
	CREATED+=$'\n'$1
	shift
	change "$@"
}

# start PROJECT REGION: checks the arguments, and sets both for gcloud.
start() {
	if [ $# -ne 2 ]; then usage; fi
	PROJECT=$1 REGION=$2
	command -v gcloud >/dev/null || fail "gcloud is not installed" "https://cloud.google.com/sdk/docs/install"
	[[ $PROJECT =~ ^[a-z][a-z0-9-]{4,28}[a-z0-9]$ ]] || fail "PROJECT is \"$PROJECT\", want the id of a project, such as my-project-123" "gcloud projects list"
	[[ $REGION =~ ^[a-z]+-[a-z]+[0-9]+$ ]] || fail "REGION is \"$REGION\", want one such as europe-west1" "gcloud run regions list"
	export CLOUDSDK_CORE_PROJECT=$PROJECT CLOUDSDK_RUN_REGION=$REGION CLOUDSDK_CORE_DISABLE_PROMPTS=1
	show export "CLOUDSDK_CORE_PROJECT=$PROJECT" "CLOUDSDK_RUN_REGION=$REGION" CLOUDSDK_CORE_DISABLE_PROMPTS=1
	if [ -n "${DRY_RUN:-}" ]; then printf '%s: a dry run: what would change is shown, and nothing is changed\n' "$SCRIPT" >&2; fi
}
