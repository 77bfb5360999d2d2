package kafka

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Settings say how to reach a cluster.
type Settings struct {
	Brokers  []string `env:"KAFKA_BROKERS" help:"brokers to begin with, as HOST:PORT, separated by commas; required by BROKER=kafka"`
	TLS      bool     `env:"KAFKA_TLS" help:"whether connections use TLS, which plain and google need: true or false; the certificate authorities of the system are trusted, or of SSL_CERT_FILE"`
	SASL     string   `env:"KAFKA_SASL" envDefault:"none" help:"how we authenticate: none, plain, scram-sha-512 or google (Managed Service for Apache Kafka)"`
	User     string   `env:"KAFKA_USER" help:"name of the user; with google the email of the service account"`
	Password string   `env:"KAFKA_PASSWORD" help:"password of the user, for plain and scram-sha-512"`
}

// The values of KAFKA_SASL.
const (
	saslNone   = "none"
	saslPlain  = "plain"
	saslSCRAM  = "scram-sha-512"
	saslGoogle = "google"
)

// mistakes returns the mistakes in the settings.
func (s *Settings) mistakes() (errs []error) {
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	unless(len(s.Brokers) > 0, "KAFKA_BROKERS is required by BROKER=kafka: the brokers of the cluster, such as kafka:9092")
	for _, broker := range s.Brokers {
		host, port, _ := net.SplitHostPort(broker)
		_, err := strconv.ParseUint(port, 10, 16)
		unless(err == nil && host != "", "KAFKA_BROKERS has %q: it must be HOST:PORT, such as kafka:9092", broker)
	}
	unless(slices.Contains([]string{saslNone, saslPlain, saslSCRAM, saslGoogle}, s.SASL), "KAFKA_SASL must be none, plain, scram-sha-512 or google")
	password := s.SASL == saslPlain || s.SASL == saslSCRAM
	unless((s.User == "") == (s.SASL == saslNone), "KAFKA_USER is required by each KAFKA_SASL but none, and has no effect with that")
	unless(s.Password != "" || !password, "KAFKA_PASSWORD is required by KAFKA_SASL=%s", s.SASL)
	unless(s.Password == "" || password, "KAFKA_PASSWORD has no effect with KAFKA_SASL=%s: unset it, or set KAFKA_SASL", s.SASL)
	unless(s.TLS || s.SASL != saslPlain && s.SASL != saslGoogle, "KAFKA_TLS must be true with KAFKA_SASL=%s: the broker gets a secret as it is", s.SASL)
	return errs
}

// Options returns the options of a client of the cluster, for NewSink and NewSource.
func (s *Settings) Options(log *slog.Logger) ([]kgo.Opt, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(s.Brokers...), kgo.ClientID(name), kgo.WithLogger(logger{log}), kgo.DisableClientMetrics(),
		// After an outage or a new leader the client goes on within a second, and it gives up a silent connection in seconds.
		kgo.RetryBackoffFn(backoff), kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Minute),
		kgo.DialTimeout(3 * time.Second), kgo.RequestTimeoutOverhead(5 * time.Second),
	}
	if s.TLS {
		options = append(options, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	mechanism, err := s.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return options, kgo.ValidateOpts(options...)
}

// backoff returns a random pause before the next attempt, at most a second.
func backoff(attempts int) time.Duration {
	longest := min(50*time.Millisecond<<min(attempts, 5), time.Second)
	return longest/2 + rand.N(longest/2)
}

// mechanism returns how a client authenticates; nil: it does not.
func (s *Settings) mechanism() (sasl.Mechanism, error) {
	switch s.SASL {
	case saslPlain:
		return plain.Auth{User: s.User, Pass: s.Password}.AsMechanism(), nil
	case saslSCRAM:
		return scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism(), nil
	case saslGoogle:
		found, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{"https://www.googleapis.com/auth/cloud-platform"}})
		if err != nil {
			return nil, fmt.Errorf("KAFKA_SASL=google: %w", err)
		}
		return google(found, s.User), nil
	}
	return nil, nil //nolint:nilnil // none is a value
}

// google authenticates an account of Google Cloud. Its Kafka takes a token only as the last of three segments
// (https://cloud.google.com/managed-service-for-apache-kafka/docs/authentication-kafka).
func google(tokens auth.TokenProvider, email string) sasl.Mechanism {
	return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
		token, err := tokens.Token(ctx)
		if err != nil {
			return oauth.Auth{}, err
		}
		claims, err := json.Marshal(map[string]any{"exp": token.Expiry.Unix(), "iat": time.Now().Unix(), "iss": "Google", "scope": "kafka", "sub": email})
		if err != nil {
			return oauth.Auth{}, err
		}
		segments := []string{`{"typ":"JWT","alg":"GOOG_OAUTH2_TOKEN"}`, string(claims), token.Value}
		for i, segment := range segments {
			segments[i] = base64.RawURLEncoding.EncodeToString([]byte(segment))
		}
		return oauth.Auth{Token: strings.Join(segments, ".")}, nil
	})
}

// isRefused reports whether the cluster refuses our credentials or rights, or the topic was deleted and created again. The
// client does not recover from that by itself.
func isRefused(err error) bool {
	refusals := []error{
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.InvalidGroupID, kerr.UnknownTopicID,
	}
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
}

// logger writes the warnings and errors of the client.
type logger struct{ *slog.Logger }

func (l logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(_ kgo.LogLevel, message string, attrs ...any) {
	l.Warn("kafka: client", append(attrs, "warning", message)...)
}
