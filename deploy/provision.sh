#!/usr/bin/env bash
# provision.sh [--dry-run] [--exactly-once] PROJECT REGION
#
# Creates everything in a Google Cloud project that a release of the service (release.sh) needs: APIs, a repository for
# images, the schema, topics, subscriptions, service accounts with minimal roles, and secrets without a value. Resources
# that exist are kept or updated, so run it again after it has changed or failed. It prints every command before it runs
# it, and stops at the first that fails.
#
#   --dry-run       show the commands that would change something; change nothing
#   --exactly-once  exactly-once delivery for the subscriptions, which is off without it; the inbox makes it unnecessary
#
# Names are in internal/names. The environment variable REPOSITORY is the repository of images. Default: the name
# of the service. destroy.sh removes everything again.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$here/lib.sh"

EXACTLY_ONCE=False
arguments=()
for argument; do
	case $argument in
	--dry-run) DRY_RUN=1 ;;
	--exactly-once) EXACTLY_ONCE=True ;;
	-*) usage ;;
	*) arguments+=("$argument") ;;
	esac
done
start "${arguments[@]}"

retention=7d retention_seconds=604800s

number=$(look "is the id right, and may you see the project? gcloud projects list; gcloud auth login" \
	gcloud projects describe "$PROJECT" --format='value(projectNumber)')

# APIs.
found=$(missing_apis "you need roles/serviceusage.serviceUsageAdmin")
if [ -n "$found" ]; then
	mapfile -t missing <<<"$found"
	change "the project needs a billing account, and you roles/serviceusage.serviceUsageAdmin" \
		gcloud services enable "${missing[@]/%/.googleapis.com}"
	if [ -n "${DRY_RUN:-}" ]; then without "${missing[@]}"; fi # they would be enabled
fi

# The repository of images.
repositories=$(look "you need roles/artifactregistry.admin" gcloud artifacts repositories list --location="$REGION" --format='value(name.basename())')
if ! has "$repositories" "$REPOSITORY"; then
	create "$REPOSITORY" "you need roles/artifactregistry.admin; is there Artifact Registry in $REGION?" \
		gcloud artifacts repositories create "$REPOSITORY" --location="$REGION" --repository-format=docker --immutable-tags \
		--description="Images of services"
fi

# The schemas. Each has the name of its topic. Pub/Sub refuses events that do not match. Old consumers must be able to read
# a new revision, which make breaking checks too.
definition() {
	look "you need roles/pubsub.editor" gcloud pubsub schemas describe "$1" --format='value(definition)'
}
schemas=$(look "you need roles/pubsub.editor" gcloud pubsub schemas list --format='value(name.basename())')
for i in "${!TOPICS[@]}"; do
	schema=${TOPICS[$i]} file=$here/../${SCHEMA_FILES[$i]} now=''
	if has "$schemas" "$schema"; then now=$(definition "$schema"); fi
	if ! has "$schemas" "$schema"; then
		change "Pub/Sub wants one message in one file without imports" \
			gcloud pubsub schemas create "$schema" --type=protocol-buffer --definition-file="$file"
	elif [ "$now" != "$(cat "$file")" ]; then
		remedy="a revision may only add fields, a schema has at most 20, and each only once: to go back to an earlier one, gcloud pubsub schemas list-revisions $schema, then rollback"
		change "$remedy" gcloud pubsub schemas commit "$schema" --type=protocol-buffer --definition-file="$file"
		# If Pub/Sub refuses a revision, gcloud prints an error but exits with 0.
		now=$(definition "$schema")
		if [ -z "${DRY_RUN:-}" ] && [ "$now" != "$(cat "$file")" ]; then fail "the schema is not what is in $file" "$remedy"; fi
	fi
done

# The topics. Messages are stored in this region only, because order is kept only if all publishers use one region.
topics=$(look "you need roles/pubsub.editor" gcloud pubsub topics list --format='value[separator=" "](
	name.basename(), messageRetentionDuration, schemaSettings.schema.basename(), schemaSettings.encoding,
	messageStoragePolicy.allowedPersistenceRegions.list())')
for topic in "${TOPICS[@]}" "${DEAD_LETTERS[@]}"; do
	flags=("--message-storage-policy-allowed-regions=$REGION")
	want="$topic    $REGION"
	if [ "${topic%.dead}" = "$topic" ]; then # dead letters may not match the schema, and their subscription retains them
		flags+=("--schema=$topic" --message-encoding=binary "--message-retention-duration=$retention")
		want="$topic $retention_seconds $topic BINARY $REGION"
	fi
	if ! grep -q "^${topic//./\\.} " <<<"$topics"; then
		create "$topic" "you need roles/pubsub.editor; does a policy of the organization forbid $REGION?" gcloud pubsub topics create "$topic" "${flags[@]}"
	elif ! has "$topics" "$want"; then
		change "compare: gcloud pubsub topics describe $topic" gcloud pubsub topics update "$topic" "${flags[@]}"
	fi
done

# The subscriptions. None of them expires. The projector fails a delivery only when it is stopped or crashes. So after 20
# failures the message is the likely cause.
subscriptions=$(look "you need roles/pubsub.editor" gcloud pubsub subscriptions list --format='value[separator=" "](
	name.basename(), topic, enableMessageOrdering.yesno(yes=True,no=False), enableExactlyOnceDelivery.yesno(yes=True,no=False),
	retainAckedMessages.yesno(yes=True,no=False), messageRetentionDuration, ackDeadlineSeconds, retryPolicy.minimumBackoff,
	retryPolicy.maximumBackoff, deadLetterPolicy.deadLetterTopic.basename(), deadLetterPolicy.maxDeliveryAttempts, expirationPolicy.ttl)')
for subscription in "${SUBSCRIPTIONS[@]}" "${DEAD_LETTERS[@]}"; do
	flags=(--ack-deadline=60 "--message-retention-duration=$retention" --expiration-period=never)
	path=projects/$PROJECT/topics/$subscription
	fixed=("--topic=$path")
	ordered=False
	want="$subscription $path False False False $retention_seconds 60     "
	if [ "${subscription%.dead}" = "$subscription" ]; then
		topic=${subscription%.*}
		path=projects/$PROJECT/topics/$topic
		for remote in "${REMOTE_TOPICS[@]}"; do
			if [ "${remote##*/}" = "$topic" ]; then path=$remote; fi
		done
		flags+=(--retain-acked-messages --min-retry-delay=10s --max-retry-delay=600s
			"--dead-letter-topic=$subscription.dead" --max-delivery-attempts=20)
		if [ $EXACTLY_ONCE = True ]; then
			flags+=(--enable-exactly-once-delivery)
		else
			flags+=(--no-enable-exactly-once-delivery)
		fi
		fixed=("--topic=$path" --enable-message-ordering)
		ordered=True
		want="$subscription $path True $EXACTLY_ONCE True $retention_seconds 60 10s 600s $subscription.dead 20 "
	fi
	found=$(grep "^${subscription//./\\.} " <<<"$subscriptions" || true)
	if [ -z "$found" ]; then
		create "$subscription" "you need roles/pubsub.editor, and roles/pubsub.subscriber on a topic of another project" gcloud pubsub subscriptions create "$subscription" "${fixed[@]}" "${flags[@]}"
		continue
	fi
	read -r _ topic is_ordered _ <<<"$found"
	if [ "${fixed[0]}" != "--topic=$topic" ] || [ "$is_ordered" != "$ordered" ]; then
		fail "subscription $subscription has topic $topic, ordering $is_ordered; want ${fixed[0]#--topic=}, $ordered, and neither can be changed" \
			"stop the projector, gcloud pubsub subscriptions delete $subscription, run this again, then, with the option repair: server projection repair --all --why 'new subscription'"
	fi
	if [ "$found" != "$want" ]; then
		change "compare: gcloud pubsub subscriptions describe $subscription" gcloud pubsub subscriptions update "$subscription" "${flags[@]}"
	fi
done

# Service accounts.
accounts=$(look "you need roles/iam.serviceAccountAdmin" gcloud iam service-accounts list --format='value(email)')
for account in "${ACCOUNTS[@]}"; do
	if ! has "$accounts" "$(email "$account")"; then
		create "$(email "$account")" "you need roles/iam.serviceAccountAdmin; an account deleted less than 30 days ago: gcloud iam service-accounts undelete" \
			gcloud iam service-accounts create "$account" --display-name="$account"
	fi
done

# Secrets, without a value. A person adds it.
secrets=$(look "you need roles/secretmanager.admin" gcloud secrets list --format='value(name.basename())')
for secret in "$COMMAND_SECRET" "$QUERY_SECRET" "$MIGRATE_SECRET"; do
	if ! has "$secrets" "$secret"; then
		create "$secret" "you need roles/secretmanager.admin" \
			gcloud secrets create "$secret" --replication-policy=user-managed --locations="$REGION"
	fi
done

# Roles, each on a single resource. Pub/Sub forwards dead letters with its own account, which publishes them to the
# dead-letter topic and acknowledges them on the subscription.
all=serviceAccount:$(email "$SERVICE")
api=serviceAccount:$(email "$SERVICE-api")
publisher=serviceAccount:$(email "$SERVICE-publisher")
projector=serviceAccount:$(email "$SERVICE-projector")
migrate=serviceAccount:$(email "$SERVICE-migrate")
release=serviceAccount:$(email "$SERVICE-release")
pubsub=serviceAccount:service-$number@gcp-sa-pubsub.iam.gserviceaccount.com

for topic in "${TOPICS[@]}"; do
	bind "$topic" pubsub topics -- roles/pubsub.publisher "$all" roles/pubsub.publisher "$publisher"
done
for subscription in "${SUBSCRIPTIONS[@]}"; do
	bind "$subscription.dead" pubsub topics -- roles/pubsub.publisher "$pubsub"
	bind "$subscription" pubsub subscriptions -- roles/pubsub.subscriber "$all" roles/pubsub.subscriber "$projector" \
		roles/pubsub.subscriber "$pubsub"
done

CONDITION=(--condition=None)
reads=roles/secretmanager.secretAccessor
bind "$COMMAND_SECRET" secrets -- "$reads" "$all" "$reads" "$api" "$reads" "$publisher"
bind "$QUERY_SECRET" secrets -- "$reads" "$all" "$reads" "$api" "$reads" "$projector"
bind "$MIGRATE_SECRET" secrets -- "$reads" "$migrate"
for secret in "$COMMAND_SECRET" "$QUERY_SECRET" "$MIGRATE_SECRET"; do
	bind "$secret" secrets -- roles/secretmanager.viewer "$release" # a release pins the newest version, and cannot read it
done

# Traces and metrics. These roles can be granted only on the whole project.
observed=()
for role in "${OBSERVED_ROLES[@]}"; do
	for account in "${OBSERVED[@]}"; do observed+=("$role" "serviceAccount:$(email "$account")"); done
done

# The release account pushes images, deploys revisions that run as other accounts, and calls the new revision with a token.
bind "$PROJECT" projects -- "${observed[@]}" roles/run.developer "$release" roles/run.invoker "$release" roles/logging.logWriter "$release"
for account in "$SERVICE" "$SERVICE-api" "$SERVICE-publisher" "$SERVICE-projector" "$SERVICE-migrate"; do
	bind "$(email "$account")" iam service-accounts -- roles/iam.serviceAccountUser "$release"
done
bind "$(email "$SERVICE-release")" iam service-accounts -- roles/iam.serviceAccountTokenCreator "$release"
LOCATION=("--location=$REGION") CONDITION=()
bind "$REPOSITORY" artifacts repositories -- roles/artifactregistry.writer "$release"

if [ -n "${DRY_RUN:-}" ]; then exit 0; fi
cat >&2 <<END
$SCRIPT: all is there. What is left is for a person, once: the database URLs (docs/deploy.md says which user each one names), such as
  printf %s "\$URL" | gcloud secrets versions add $COMMAND_SECRET --project=$PROJECT --data-file=-
and the same for $QUERY_SECRET and $MIGRATE_SECRET. Then: deploy/release.sh
END
