package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Backend that remembers what it was asked.
type recorder struct{ calls []string }

func (r *recorder) note(s string) (Done, error) {
	r.calls = append(r.calls, s)
	return Done{Changes: []string{s}}, nil
}

func (r *recorder) Info() Info        { return Info{Version: "test", State: "serving"} }
func (r *recorder) Volumes() []Volume { return []Volume{{Name: "data", Size: 1 << 30}} }
func (r *recorder) CreateVolume(_ context.Context, s VolumeSpec) (Done, error) {
	if s.Name == "" {
		return Done{}, &Error{Invalid, "a volume needs a name"}
	}
	return r.note("create " + s.Name)
}
func (r *recorder) ResizeVolume(_ context.Context, name string, _ ResizeSpec) (Done, error) {
	return r.note("resize " + name)
}
func (r *recorder) DeleteVolume(_ context.Context, name string, data, dry bool) (Done, error) {
	if name == "broken" {
		return Done{}, errors.New("disk on fire")
	}
	if data && dry {
		name += " with data, dry"
	}
	return r.note("delete " + name)
}
func (r *recorder) Targets() []Target { return []Target{} }
func (r *recorder) CreateTarget(_ context.Context, s TargetSpec) (Done, error) {
	return r.note("target " + s.Name)
}
func (r *recorder) DeleteTarget(_ context.Context, name string, _ bool) (Done, error) {
	return r.note("delete target " + name)
}
func (r *recorder) MapLUN(_ context.Context, t string, l LUN, _ bool) (Done, error) {
	return r.note("map " + t + " " + l.Volume)
}
func (r *recorder) UnmapLUN(_ context.Context, t string, _ uint16, _ bool) (Done, error) {
	return r.note("unmap " + t)
}
func (r *recorder) AddPortal(_ context.Context, p Portal, _ bool) (Done, error) {
	return r.note("listen " + p.Address)
}
func (r *recorder) RemovePortal(_ context.Context, a string, _ bool) (Done, error) {
	return r.note("unlisten " + a)
}
func (r *recorder) CreateExport(_ context.Context, s ExportSpec) (Done, error) {
	return r.note("export " + s.Name)
}
func (r *recorder) DeleteExport(_ context.Context, name string, _ bool) (Done, error) {
	return r.note("unexport " + name)
}
func (r *recorder) AllowInitiator(_ context.Context, t string, s InitiatorSpec) (Done, error) {
	return r.note("allow " + s.Name + " " + t)
}
func (r *recorder) DenyInitiator(_ context.Context, t, i string, _ bool) (Done, error) {
	return r.note("deny " + i + " " + t)
}
func (r *recorder) SetSecret(_ context.Context, t string, s SecretSpec) (Done, error) {
	return r.note("secret " + s.User + " " + t)
}
func (r *recorder) RemoveSecret(_ context.Context, t, user string, _ bool) (Done, error) {
	return r.note("no secret " + user + " " + t)
}
func (r *recorder) Trace(id string) (Trace, error) { return Trace{Ended: "trace of " + id}, nil }
func (r *recorder) Stats() Stats                   { return Stats{Memory: MemoryStats{Limit: 4711}} }
func (r *recorder) Portals() []Portal              { return []Portal{} }
func (r *recorder) Exports() []Export              { return []Export{} }
func (r *recorder) Sessions() []Session            { return []Session{} }
func (r *recorder) CloseSession(_ context.Context, id string) (Done, error) {
	return Done{}, &Error{NotFound, "no session " + id}
}
func (r *recorder) PortGroups(t string) ([]PortGroup, error) {
	return []PortGroup{{Group: 3, State: "standby of " + t}}, nil
}
func (r *recorder) SetPortGroup(_ context.Context, t string, g uint16, s PortGroupSpec) (Done, error) {
	return r.note(fmt.Sprintf("group %d of %s %s", g, t, s.State))
}
func (r *recorder) ShowConfig() ([]byte, error) { return []byte("memory: 1GiB\n"), nil }
func (r *recorder) ReloadConfig(_ context.Context, dry bool) (Done, error) {
	return r.note(fmt.Sprintf("reload, dry %v", dry))
}
func (r *recorder) Drain(context.Context) (Done, error) { return r.note("drain") }
func (r *recorder) Healthy(context.Context) error       { return nil }
func (r *recorder) Ready() error                        { return &Error{503, "draining"} }

func start(t *testing.T, b Backend) (*http.Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := New(b, http.NotFoundHandler(), zap.NewNop(), zap.NewNop())
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(s.Close(ctx), <-done); err != nil {
			t.Error(err)
		}
	})
	return &http.Client{Transport: tr}, path
}

func call(t *testing.T, c *http.Client, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://sluiced"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// Every route of the table answers over a real socket; the list of cases must cover the table.
func TestEveryRouteAnswers(t *testing.T) {
	cases := []struct{ method, route, path, body, want string }{
		{"GET", "/v1/info", "", "", `"version": "test"`},
		{"GET", "/v1/config", "", "", "memory: 1GiB"},
		{"POST", "/v1/config/reload", "/v1/config/reload?dry_run=true", "", "reload, dry true"},
		{"GET", "/v1/volumes", "", "", `"size": 1073741824`},
		{"POST", "/v1/volumes", "", `{"name":"x","size":4096}`, "create x"},
		{"POST", "/v1/volumes/{name}/resize", "/v1/volumes/x/resize", `{"size":8192}`, "resize x"},
		{"DELETE", "/v1/volumes/{name}", "/v1/volumes/x?data=true&dry_run=1", "", "delete x with data, dry"},
		{"GET", "/v1/targets", "", "", "[]"},
		{"POST", "/v1/targets", "", `{"name":"iqn.x"}`, "target iqn.x"},
		{"DELETE", "/v1/targets/{name}", "/v1/targets/iqn.x:y", "", "delete target iqn.x:y"},
		{"POST", "/v1/targets/{name}/luns", "/v1/targets/iqn.x/luns", `{"lun":1,"volume":"v"}`, "map iqn.x v"},
		{"DELETE", "/v1/targets/{name}/luns/{lun}", "/v1/targets/iqn.x/luns/1", "", "unmap iqn.x"},
		{"GET", "/v1/targets/{name}/groups", "/v1/targets/iqn.x/groups", "", "standby of iqn.x"},
		{"POST", "/v1/targets/{name}/groups/{group}", "/v1/targets/iqn.x/groups/3", `{"state":"standby"}`, "group 3 of iqn.x standby"},
		{"GET", "/v1/portals", "", "", "[]"},
		{"POST", "/v1/portals", "", `{"address":"[::1]:3260","group":2}`, "listen [::1]:3260"},
		{"DELETE", "/v1/portals/{address}", "/v1/portals/%5B::1%5D:3260", "", "unlisten [::1]:3260"},
		{"POST", "/v1/exports", "", `{"name":"/data","path":"/srv"}`, "export /data"},
		{"DELETE", "/v1/exports/{name}", "/v1/exports/%2Fdata", "", "unexport /data"},
		{"POST", "/v1/targets/{name}/initiators", "/v1/targets/iqn.x/initiators", `{"name":"iqn.i"}`, "allow iqn.i iqn.x"},
		{"DELETE", "/v1/targets/{name}/initiators/{initiator}", "/v1/targets/iqn.x/initiators/iqn.i", "", "deny iqn.i iqn.x"},
		{"POST", "/v1/targets/{name}/secrets", "/v1/targets/iqn.x/secrets", `{"user":"u","secret":"s"}`, "secret u iqn.x"},
		{"DELETE", "/v1/targets/{name}/secrets/{user}", "/v1/targets/iqn.x/secrets/u", "", "no secret u iqn.x"},
		{"GET", "/v1/stats", "", "", "4711"},
		{"GET", "/v1/sessions/{id}/trace", "/v1/sessions/7/trace", "", "trace of 7"},
		{"GET", "/v1/exports", "", "", "[]"},
		{"GET", "/v1/sessions", "", "", "[]"},
		{"DELETE", "/v1/sessions/{id}", "/v1/sessions/7", "", "no session 7"},
		{"POST", "/v1/drain", "", "", "drain"},
		{"GET", "/healthz", "", "", "healthy"},
		{"GET", "/readyz", "", "", "draining"},
		{"GET", "/openapi.json", "", "", `"openapi": "3.0.3"`},
	}
	c, _ := start(t, &recorder{})
	covered := map[string]bool{}
	for _, tc := range cases {
		covered[tc.method+" "+tc.route] = true
		path := tc.path
		if path == "" {
			path = tc.route
		}
		if _, got := call(t, c, tc.method, path, tc.body); !strings.Contains(got, tc.want) {
			t.Errorf("%s %s answers %s, want %s in it", tc.method, path, got, tc.want)
		}
	}
	// What the service says of itself is walked, not the table it was made from; and it is a valid document.
	_, text := call(t, c, "GET", "/openapi.json", "")
	doc, err := openapi3.NewLoader().LoadFromData([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	described := 0
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if described++; !covered[method+" "+path] {
				t.Errorf("no case for %s %s", method, path)
			}
		}
	}
	if described != len(Routes()) {
		t.Errorf("%d operations are described, there are %d routes", described, len(Routes()))
	}
}

func TestRefusalsHaveTheirStatus(t *testing.T) {
	c, _ := start(t, &recorder{})
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/v1/volumes", `{"nam":"x"}`, 400, `unknown field \"nam\"`},
		{"POST", "/v1/volumes", `{`, 400, "body"},
		{"POST", "/v1/volumes", `{}`, 400, "needs a name"},
		{"DELETE", "/v1/targets/iqn.x/luns/70000", "", 400, "0 to 16383"},
		{"POST", "/v1/targets/iqn.x/groups/many", "{}", 400, "0 to 65535"},
		{"DELETE", "/v1/volumes/broken", "", 500, "disk on fire"},
		{"DELETE", "/v1/sessions/9", "", 404, "no session 9"},
		{"GET", "/readyz", "", 503, "draining"},
		{"PATCH", "/v1/volumes", "", 405, ""},
		{"GET", "/nowhere", "", 404, ""},
		{"POST", "/v1/volumes", `{"name":"` + strings.Repeat("x", maxBody) + `"}`, 400, "body"},
	} {
		status, got := call(t, c, tc.method, tc.path, tc.body)
		if status != tc.status || !strings.Contains(got, tc.want) {
			t.Errorf("%s %s: %d %s, want %d and %q", tc.method, tc.path, status, got, tc.status, tc.want)
		}
	}
}

// Whoever has no credentials at all, or somebody else's, is refused before a route runs.
func TestPeerWithoutCredentialsIsRefused(t *testing.T) {
	s := New(&recorder{}, nil, zap.NewNop(), zap.NewNop())
	w := httptest.NewRecorder()
	s.http.Handler.ServeHTTP(w, httptest.NewRequest("GET", "/v1/info", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("status %d, want 403", w.Code)
	}
}

func TestSocketIsReplacedOnlyWhenDead(t *testing.T) {
	_, path := start(t, &recorder{})
	if l, err := Listen(path); err == nil {
		l.Close()
		t.Error("a living daemon's socket was taken")
	}
	file := filepath.Join(t.TempDir(), "admin.sock")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(file); err == nil {
		l.Close()
		t.Error("a file was taken for a socket")
	}
	if b, err := os.ReadFile(file); string(b) != "kept" {
		t.Errorf("the file holds %q (%v)", b, err)
	}
}

// Every reference of the document resolves, every route is in it, and its path parameters are declared.
func TestOpenAPIDocumentHoldsTogether(t *testing.T) {
	b, err := json.Marshal(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string           `json:"operationId"`
			Parameters  []map[string]any `json:"parameters"`
			Responses   map[string]any   `json:"responses"`
		} `json:"paths"`
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, r := range Routes() {
		op, ok := doc.Paths[r.Path][strings.ToLower(r.Method)]
		if !ok || len(op.Responses) != 2 {
			t.Errorf("%s %s is not described", r.Method, r.Path)
		}
		if ids[op.OperationID] {
			t.Errorf("operationId %s is there twice", op.OperationID)
		}
		ids[op.OperationID] = true
		if got, want := len(op.Parameters), strings.Count(r.Path, "{")+len(r.Query); got != want {
			t.Errorf("%s %s has %d parameters described, want %d", r.Method, r.Path, got, want)
		}
	}
	for _, ref := range strings.Split(string(b), `"$ref":"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(ref, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("schema %s is referred to and not there", name)
		}
	}
}
