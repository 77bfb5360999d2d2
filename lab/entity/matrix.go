package entity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Row is an entity that somebody might choose, with a body that creates one, and commands in a
// valid order.
type Row struct {
	Name, Collection                string
	Fields, Transitions, Refs, Body string
	Commands                        []string
	Audited, Batch                  bool
	// Tenant gives the rows tenants, and Token is the token of one: the service needs the option tenancy.
	Tenant bool
	Token  string
}

// Matrix returns entities whose names collide with names of the machinery, protobuf or SQL, or with
// rules of the API linter. Together they have every type of field.
func Matrix() []Row {
	rows := []Row{
		{
			Name: "customer_subscription", Collection: "customerSubscriptions",
			Fields:      "customer_id:uuid! price:{currency_code:string,units:int64,nanos:int32} period:enum(month,year)! trial_end:time",
			Transitions: "trial→active:activate active→paused:pause paused→active:resume active→void:void",
			Refs:        "customer_id",
			Body:        `{"customerId": "01890a5d-ac96-7f00-8b02-0c0d0e0f1003", "price": {"currencyCode": "EUR", "units": "9", "nanos": 990000000}, "period": "PERIOD_MONTH"}`,
			Commands:    []string{"activate", "pause", "resume", "void"},
			Audited:     true, Batch: true,
		},
		{
			Name: "account", Collection: "accounts", Batch: true,
			Fields: "a:string! b:bool? c:int32? d:int64? e:double? f:bytes! g:time! h:duration i:uuid! j:enum(x,y)! " +
				"k:{s:string,b:bool,i:int32,l:int64,d:double} l:strings! m:bools n:int32s o:int64s p:doubles q:uuids! r:string? s:bool t:int32 u:double v:[{s:string,b:bool,i:int32,l:int64,d:double}]!",
			Body: `{"a": "a", "f": "AP8=", "g": "2026-01-02T03:04:05Z", "i": "01890a5d-ac96-7f00-8b02-0c0d0e0f1003", "j": "J_X", "l": ["a"], "q": ["01890a5d-ac96-7f00-8b02-0c0d0e0f1004"], "v": [{"i": 1}, {}]}`,
		},
		{
			Name: "bill_of_lading", Collection: "billOfLadings", Audited: true,
			Fields: "nanos:int64 status:enum(open,closed)! ip_address:string ttl:string configuration:string currency:string num_items:int32 first_name:string " +
				"due_date:string placed_at:time file_name:string url:uuid days_of_week:strings colour:string dry_run:bool payment_state:enum(open,b2b_paid) " +
				"position:int32 values:strings interval:duration precision:double? none:bool package:string? address_line_1:string b2b:bool between:time coalesce:uuid row:{a_1:string}",
			Transitions: "new→return:return return→new:reopen return→sent:send_to sent→seen:read seen→sent:rollback sent→made:make made→late:postpone late→new:patch",
			Body:        `{"status": "STATUS_OPEN", "placedAt": "2026-01-02T03:04:05Z"}`,
			Commands:    []string{"return", "reopen", "return", "sendTo", "read", "rollback", "make", "postpone", "patch"},
		},
	}
	for name, collection := range map[string]string{"charge": "charges", "entry": "entries", "event": "events", "group": "groups", "lease": "leases",
		"message": "messages", "news": "newsList", "organisation": "organisations", "price_revision": "priceRevisions", "print_job": "printJobs", "quiz": "quizzes", "schema": "schemas", "server": "servers", "service": "services", "subscription": "subscriptions", "topic": "topics", "view": "views"} {
		rows = append(rows, Row{
			Name: name, Collection: collection, Fields: "title:string! nanos:int32", Transitions: "draft→placed:run placed→void:void",
			Body: `{"title": "one"}`, Commands: []string{"run", "void"},
		})
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// Drawn returns the rows that LAB_ENTITY names, separated by commas. Without it, Drawn returns n rows at random, and logs them.
func Drawn(t *testing.T, n int) []Row {
	t.Helper()
	rows := Matrix()
	if names := os.Getenv("LAB_ENTITY"); names != "" {
		return slices.DeleteFunc(rows, func(r Row) bool { return !slices.Contains(strings.Split(names, ","), r.Name) })
	}
	rand.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	var names []string
	for _, r := range rows[:n] {
		names = append(names, r.Name)
	}
	t.Logf("LAB_ENTITY=%s", strings.Join(names, ","))
	return rows[:n]
}

// Flags are the flags of cmd/entity.
func (r Row) Flags() []string {
	flags := []string{"--fields", r.Fields}
	if r.Transitions != "" {
		flags = append(flags, "--transitions", r.Transitions)
	}
	if r.Refs != "" {
		flags = append(flags, "--refs", r.Refs)
	}
	if r.Audited {
		flags = append(flags, "--audited")
	}
	if r.Batch {
		flags = append(flags, "--batch")
	}
	if r.Tenant {
		flags = append(flags, "--tenant")
	}
	return flags
}

// Use makes an entity over REST, takes it through its commands, deletes and restores it, and waits for its view.
func (r Row) Use(t *testing.T, api string) {
	t.Helper()
	created := r.send(t, http.MethodPost, api+r.Collection, r.Body)
	name, _ := created["name"].(string)
	r.send(t, http.MethodPatch, api+name, r.Body)
	for _, command := range r.Commands {
		r.send(t, http.MethodPost, api+name+":"+command, "{}")
	}
	r.send(t, http.MethodDelete, api+name, "")
	restored := r.send(t, http.MethodPost, api+name+":undelete", "{}")
	if _, audited := restored["createUser"]; audited != r.Audited {
		t.Errorf("%s has a create_user: %t, want %t: %v", r.Collection, audited, r.Audited, restored)
	}
	id := strings.TrimPrefix(name, r.Collection+"/")
	list := r.send(t, http.MethodGet, api+r.Collection, "")
	if !strings.Contains(fmt.Sprint(list), id) {
		t.Errorf("the list of %s has no %s: %v", r.Collection, id, list)
	}
	if r.Batch {
		item := fmt.Sprintf(`{%q: %s}`, lowerCamel(r.Name), r.Body)
		made := r.send(t, http.MethodPost, api+r.Collection+":batchCreate", fmt.Sprintf(`{"requests": [%s, %[1]s]}`, item))
		two, _ := made[r.Collection].([]any)
		if got := r.send(t, http.MethodGet, api+r.Collection+":batchGet?names="+name, ""); len(two) != 2 || !strings.Contains(fmt.Sprint(got), id) {
			t.Errorf("a batch made %v, and one of %s is %v", made, name, got)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		views := r.send(t, http.MethodGet, api+lowerCamel(r.Name)+"Views", "")
		if text := fmt.Sprint(views); strings.Contains(text, id) && strings.Contains(text, fmt.Sprint(restored["version"])) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the views of %s = %v, want %v", r.Collection, views, restored)
		}
	}
}

// send makes a call that must succeed.
func (r Row) send(t *testing.T, method, url, body string) (got map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if r.Token != "" {
		request.Header.Set("Authorization", "Bearer "+r.Token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || json.Unmarshal(text, &got) != nil {
		t.Fatalf("%s %s = %s: %s, %v", method, url, response.Status, text, err)
	}
	return got
}

// lowerCamel returns a name as JSON writes it.
func lowerCamel(name string) string {
	parts := strings.Split(name, "_")
	for i, part := range parts[1:] {
		parts[i+1] = strings.ToUpper(part[:1]) + part[1:]
	}
	return strings.Join(parts, "")
}
