// Package kafka runs Kafka for tests, in a process that can be killed, frozen, and started again on its data: a real Apache
// Kafka, which is one node in KRaft mode, or kfake.
package kafka

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"example.com/videocatalog/lab/internal/child"
)

// ErrMissing means that this machine cannot run a real Kafka.
var ErrMissing = errors.New("a real Kafka needs Java 17 and Maven (apt-get install openjdk-17-jre-headless maven), or KAFKA_BROKERS")

// MaxBatch is the limit of a batch in bytes. The largest event fits.
const MaxBatch = 16 << 20

// Kafka is a server of one node.
type Kafka struct {
	*child.Process // nil if KAFKA_BROKERS names the cluster

	Addr  string // of its brokers
	start func() (*child.Process, error)
}

//go:embed pom.xml
var pom []byte

// properties are for a small broker without replicas, whose groups begin at once.
const properties = `process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://%[1]s,CONTROLLER://%[2]s
controller.quorum.voters=1@%[2]s
controller.listener.names=CONTROLLER
log.dirs=%[3]s
message.max.bytes=%[4]d
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
`

// New starts a real Kafka with its data in dir, or returns the cluster that KAFKA_BROKERS names. The error wraps
// ErrMissing if this machine has neither.
func New(ctx context.Context, dir string) (*Kafka, error) {
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		return &Kafka{Addr: brokers}, nil
	}
	classes, err := jars(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMissing, err)
	}
	addr, errAddr := freeAddr(ctx)
	controller, errController := freeAddr(ctx)
	settings := filepath.Join(dir, "server.properties")
	text := fmt.Sprintf(properties, addr, controller, filepath.Join(dir, "data"), MaxBatch)
	log, errLog := os.Create(filepath.Join(dir, "kafka.log")) //nolint:gosec // a folder of the lab
	if err := errors.Join(errAddr, errController, errLog, os.WriteFile(settings, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	java := func(args ...string) *exec.Cmd { // with one compiler and one collector: the cores are for the service under test
		flags := []string{
			"-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(classes, "*"),
		}
		cmd := exec.CommandContext(context.WithoutCancel(ctx), "java", append(flags, args...)...) //nolint:gosec // the lab's own arguments
		cmd.Stderr = log
		return cmd
	}
	if err := java("kafka.tools.StorageTool", "format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg", "--config", settings).Run(); err != nil {
		reason, _ := os.ReadFile(log.Name())
		if strings.Contains(string(reason), "UnsupportedClassVersionError") {
			err = ErrMissing
		}
		return nil, fmt.Errorf("format the storage of Kafka: %w\n%s", err, reason)
	}
	k := &Kafka{Addr: addr, start: func() (*child.Process, error) { return child.Start(java("kafka.Kafka", settings)) }}
	return k, k.Start(ctx)
}

// Start starts the process, again after Kill, and returns when it listens.
func (k *Kafka) Start(ctx context.Context) (err error) {
	if k.Process, err = k.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", k.Addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-k.Ended():
			return fmt.Errorf("kafka has ended, see kafka.log: %w", err)
		case <-ctx.Done():
			k.Kill()
			return fmt.Errorf("kafka does not listen: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kill ends the process by SIGKILL.
func (k *Kafka) Kill() {
	if k.Process != nil {
		k.End(syscall.SIGKILL)
	}
}

// jars returns the folder of the jars in the user's cache. Maven fetches them the first time.
func jars(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "lab-kafka-4.4.0")
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	half, err := os.MkdirTemp(cache, "lab-kafka-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(half) }() // temporary files
	file := filepath.Join(half, "pom.xml")
	if err := os.WriteFile(file, pom, 0o600); err != nil {
		return "", err
	}
	fetch := exec.CommandContext(ctx, "mvn", "--quiet", "--batch-mode", "--file", file, "dependency:copy-dependencies", "-DoutputDirectory="+half) //nolint:gosec // our own file
	if out, err := fetch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("mvn: %w %s", err, out)
	}
	if err := os.Rename(half, dir); err != nil && !errors.Is(err, os.ErrExist) { // another process was first
		return "", err
	}
	return dir, nil
}

// freeAddr returns an address on whose port nobody listens.
func freeAddr(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
