-- +goose Up
CREATE TABLE video_catalog.requests (
	aggregate_type text NOT NULL,
	request_id uuid NOT NULL,
	aggregate_id text NOT NULL,
	fingerprint bytea NOT NULL,
	create_time timestamptz NOT NULL,
	PRIMARY KEY (aggregate_type, request_id)
);

COMMENT ON TABLE video_catalog.requests IS 'The aggregate that a request_id created, so that a repeated create makes no second one (AIP-155). Pruned after a day.';
COMMENT ON COLUMN video_catalog.requests.fingerprint IS 'SHA-256 of the request. The same id with another content is refused.';

CREATE INDEX requests_create_time ON video_catalog.requests (create_time);

GRANT SELECT, INSERT, DELETE ON video_catalog.requests TO video_catalog_rw;
GRANT SELECT (aggregate_type, request_id, aggregate_id, create_time) ON video_catalog.requests TO support_ro;

-- +goose Down
DROP TABLE video_catalog.requests;
