package scaffold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/jackc/pgx/v5"

	"example.com/videocatalog/internal/localbroker"
	"example.com/videocatalog/internal/localpg"
	"example.com/videocatalog/lab/internal/clone"
)

const project = "test-project"

// shareEvents adds an entity to a service, and a replica of it to another one. Both run on
// one database and one Pub/Sub, and what is written in the first is read in the second.
func shareEvents(t *testing.T, owner, reader string) {
	t.Helper()
	clone.Run(t, owner, "go", "run", "./cmd/entity", "add", "parcel", "--fields", "customer_id:uuid! labels:strings grams:int32", "--transitions", "packed→shipped:ship")
	clone.Run(t, reader, "go", "run", "./cmd/entity", "replicate", "parcel", owner)
	for _, service := range []string{owner, reader} {
		clone.Run(t, service, "go", "vet", "./internal/...", "./cmd/server")
		clone.Run(t, service, "go", "test", "./internal/archtest", "./internal/names/...", "./internal/event")
		clone.Run(t, service, "go", "test", "./internal/store", "./cmd/server", "-run", "Parcel|Subscriptions|Least|Support")
	}

	database, err := localpg.Start(t.Context(), localpg.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := database.Stop(); err != nil {
			t.Error(err)
		}
	})
	broker, err := localbroker.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})
	apis := make(map[string]string)
	for _, service := range []string{owner, reader} {
		provision(t, broker, service)
		apis[service] = startServer(t, service, "DATABASE_URL="+database.DSN("postgres"), "PUBSUB_EMULATOR_HOST="+broker.Addr())
	}
	checkSchemas(t, database.DSN("postgres"), 4)

	created := call(t, apis[owner]+"/v1/parcels", `{"customerId": "01890a5d-ac96-7a01-8b02-0c0d0e0f2001", "labels": ["fragile"], "grams": 750}`)
	name, _ := created["name"].(string)
	shipped := call(t, apis[owner]+"/v1/"+name+":ship", "{}")
	if shipped["state"] != "STATE_SHIPPED" {
		t.Errorf("the parcel is %v, want it shipped", shipped)
	}
	view := apis[reader] + "/v1/" + strings.Replace(name, "parcels/", "parcelViews/", 1)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got, _ := call(t, view, "")["parcel"].(map[string]any)
		if got["state"] == "STATE_SHIPPED" && fmt.Sprintf("%v %v %v", got["grams"], got["labels"], got["version"]) == "750 [fragile] 2" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica is %v after a minute, want that of %v", got, shipped)
		}
	}
}

// checkSchemas counts the schemas of services in a database.
func checkSchemas(t *testing.T, url string, want int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var schemas int
	const count = "SELECT count(*) FROM pg_namespace WHERE nspname IN ('orders_db', 'orders_db_read', 'buying', 'buying_read')"
	if err := conn.QueryRow(t.Context(), count).Scan(&schemas); err != nil || schemas != want {
		t.Errorf("%d schemas of the services, %v, want %d", schemas, err, want)
	}
}

// provision creates the topics and subscriptions of deploy/names.sh. The owner comes first:
// a foreign topic is created by its owner only.
func provision(t *testing.T, broker *localbroker.Server, service string) {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(service, "deploy", "names.sh"))
	if err != nil {
		t.Fatal(err)
	}
	words := func(name string) []string {
		return strings.Fields(string(regexp.MustCompile(`(?m)^` + name + `=\(([^)]*)\)`).FindSubmatch(script)[1]))
	}
	client, err := broker.Client(t.Context(), project)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topics := words("TOPICS")
	for _, subscription := range words("SUBSCRIPTIONS") {
		topics = append(topics, subscription+".dead")
	}
	for _, topic := range topics {
		if _, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: "projects/" + project + "/topics/" + topic}); err != nil {
			t.Fatalf("create topic %s: %v", topic, err)
		}
	}
	for _, subscription := range words("SUBSCRIPTIONS") {
		createSubscription(t, client, subscription)
	}
}

func createSubscription(t *testing.T, client *pubsub.Client, name string) {
	t.Helper()
	topic := name[:strings.LastIndexByte(name, '.')]
	if _, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: "projects/" + project + "/subscriptions/" + name, Topic: "projects/" + project + "/topics/" + topic, EnableMessageOrdering: true,
		AckDeadlineSeconds: 60, DeadLetterPolicy: &pubsubpb.DeadLetterPolicy{DeadLetterTopic: "projects/" + project + "/topics/" + name + ".dead", MaxDeliveryAttempts: 20},
	}); err != nil {
		t.Fatalf("create subscription %s: %v", name, err)
	}
}

// startServer migrates, starts the server of a service until the test ends, and returns the
// address of its API.
func startServer(t *testing.T, service string, environ ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "server")
	clone.Run(t, service, "go", "build", "-o", program, "./cmd/server")
	environ = append(environ, "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"), "PORT=0", "AUTH=off", "PUBSUB_PROJECT="+project)
	migrate := exec.Command(program, "migrate")
	migrate.Env = environ
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Env = environ
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan string, 1), make(chan struct{})
	var log strings.Builder // after ended
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.WriteString(lines.Text() + "\n")
			var line struct{ Message, Addr string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "server: started" {
				started <- line.Addr
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of %s:\n%s", service, log.String())
		}
	})
	select {
	case addr := <-started:
		return "http://localhost" + addr[strings.LastIndexByte(addr, ':'):]
	case <-ended:
		t.Fatalf("the server ended:\n%s", log.String())
	case <-time.After(time.Minute):
		t.Fatal("the server did not start in a minute")
	}
	return ""
}

// call posts a body, or gets without one. It tries again while the server is not ready. The
// answer may be an error.
func call(t *testing.T, url, body string) map[string]any {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode == http.StatusServiceUnavailable && time.Now().Before(deadline) {
			continue
		}
		var answer map[string]any
		if err := errors.Join(err, json.Unmarshal(text, &answer)); err != nil {
			t.Fatalf("%s %s: %v: %s", method, url, err, text)
		}
		return answer
	}
}
