# Generated from internal/names by make generate; do not edit.
# shellcheck shell=bash disable=SC2034 # the scripts use what this file sets
SERVICE=videocatalog
TOPICS=(video.events)
SUBSCRIPTIONS=(video.events.catalog) # TOPIC.CONSUMER, with dead letters in TOPIC.CONSUMER.dead
SCHEMA_FILES=(api/proto/video/v1/video_event.proto) # of the topics, in their order
REMOTE_TOPICS=() # in other projects: the subscriptions to them name them so
