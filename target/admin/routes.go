package admin

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
)

// rawYAML is an answer that is not JSON.
type rawYAML []byte

// Route is one operation of the interface; the OpenAPI document is made from this table.
type Route struct {
	Method, Path, Summary string
	In, Out               reflect.Type // request body and answer; In may be nil
	Query                 []string     // boolean query parameters
	run                   func(Backend, *http.Request) (any, error)
}

func body[T any](f func(Backend, *http.Request, T) (any, error)) func(Backend, *http.Request) (any, error) {
	return func(b Backend, r *http.Request) (any, error) {
		var v T
		if err := decode(r, &v); err != nil {
			return nil, err
		}
		return f(b, r, v)
	}
}

func lunOf(r *http.Request) (uint16, error) {
	n, err := strconv.ParseUint(r.PathValue("lun"), 10, 16)
	if err != nil || n > 16383 {
		return 0, &Error{Invalid, "a LUN is a number from 0 to 16383"}
	}
	return uint16(n), nil
}

var doneType = reflect.TypeFor[Done]()

// Routes is the table of the interface.
func Routes() []Route {
	return []Route{
		{Method: "GET", Path: "/v1/info", Summary: "What runs", Out: reflect.TypeFor[Info](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Info(), nil }},
		{Method: "GET", Path: "/v1/config", Summary: "The effective configuration, as YAML", Out: reflect.TypeFor[rawYAML](),
			run: func(b Backend, _ *http.Request) (any, error) {
				y, err := b.ShowConfig()
				return rawYAML(y), err
			}},
		{Method: "POST", Path: "/v1/config/reload", Summary: "Read the configuration file again", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) { return b.ReloadConfig(r.Context(), flag(r, "dry_run")) }},
		{Method: "GET", Path: "/v1/volumes", Summary: "All volumes", Out: reflect.TypeFor[[]Volume](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Volumes(), nil }},
		{Method: "POST", Path: "/v1/volumes", Summary: "Create a file volume, or clone one", In: reflect.TypeFor[VolumeSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s VolumeSpec) (any, error) { return b.CreateVolume(r.Context(), s) })},
		{Method: "POST", Path: "/v1/volumes/{name}/resize", Summary: "Change a volume's size", In: reflect.TypeFor[ResizeSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s ResizeSpec) (any, error) {
				return b.ResizeVolume(r.Context(), r.PathValue("name"), s)
			})},
		{Method: "DELETE", Path: "/v1/volumes/{name}", Summary: "Forget a volume, and with data=true delete its file", Query: []string{"data", "dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				return b.DeleteVolume(r.Context(), r.PathValue("name"), flag(r, "data"), flag(r, "dry_run"))
			}},
		{Method: "GET", Path: "/v1/targets", Summary: "All targets and their LUN maps", Out: reflect.TypeFor[[]Target](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Targets(), nil }},
		{Method: "POST", Path: "/v1/targets", Summary: "Create a target", In: reflect.TypeFor[TargetSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s TargetSpec) (any, error) { return b.CreateTarget(r.Context(), s) })},
		{Method: "DELETE", Path: "/v1/targets/{name}", Summary: "Remove a target; its sessions end", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				return b.DeleteTarget(r.Context(), r.PathValue("name"), flag(r, "dry_run"))
			}},
		{Method: "POST", Path: "/v1/targets/{name}/luns", Summary: "Map a volume", In: reflect.TypeFor[LUN](), Query: []string{"dry_run"}, Out: doneType,
			run: body(func(b Backend, r *http.Request, l LUN) (any, error) {
				return b.MapLUN(r.Context(), r.PathValue("name"), l, flag(r, "dry_run"))
			})},
		{Method: "DELETE", Path: "/v1/targets/{name}/luns/{lun}", Summary: "Unmap a LUN", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				lun, err := lunOf(r)
				if err != nil {
					return nil, err
				}
				return b.UnmapLUN(r.Context(), r.PathValue("name"), lun, flag(r, "dry_run"))
			}},
		{Method: "POST", Path: "/v1/targets/{name}/initiators", Summary: "Let an initiator in, and everybody else no more", In: reflect.TypeFor[InitiatorSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s InitiatorSpec) (any, error) {
				return b.AllowInitiator(r.Context(), r.PathValue("name"), s)
			})},
		{Method: "DELETE", Path: "/v1/targets/{name}/initiators/{initiator}", Summary: "Take an initiator off the list; its sessions end", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				return b.DenyInitiator(r.Context(), r.PathValue("name"), r.PathValue("initiator"), flag(r, "dry_run"))
			}},
		{Method: "POST", Path: "/v1/targets/{name}/secrets", Summary: "Set a CHAP secret", In: reflect.TypeFor[SecretSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s SecretSpec) (any, error) {
				return b.SetSecret(r.Context(), r.PathValue("name"), s)
			})},
		{Method: "DELETE", Path: "/v1/targets/{name}/secrets/{user}", Summary: "Forget a CHAP secret", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				return b.RemoveSecret(r.Context(), r.PathValue("name"), r.PathValue("user"), flag(r, "dry_run"))
			}},
		{Method: "GET", Path: "/v1/targets/{name}/groups", Summary: "A target's port groups and their access states (ALUA)", Out: reflect.TypeFor[[]PortGroup](),
			run: func(b Backend, r *http.Request) (any, error) { return b.PortGroups(r.PathValue("name")) }},
		{Method: "POST", Path: "/v1/targets/{name}/groups/{group}", Summary: "Set a port group's access state; initiators are told", In: reflect.TypeFor[PortGroupSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s PortGroupSpec) (any, error) {
				group, err := strconv.ParseUint(r.PathValue("group"), 10, 16)
				if err != nil {
					return nil, &Error{Invalid, "a port group is a number from 0 to 65535"}
				}
				return b.SetPortGroup(r.Context(), r.PathValue("name"), uint16(group), s)
			})},
		{Method: "POST", Path: "/v1/portals", Summary: "Listen on one more address", In: reflect.TypeFor[Portal](), Query: []string{"dry_run"}, Out: doneType,
			run: body(func(b Backend, r *http.Request, p Portal) (any, error) {
				return b.AddPortal(r.Context(), p, flag(r, "dry_run"))
			})},
		{Method: "DELETE", Path: "/v1/portals/{address}", Summary: "Listen there no more; its sessions stay until they end", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				return b.RemovePortal(r.Context(), r.PathValue("address"), flag(r, "dry_run"))
			}},
		{Method: "POST", Path: "/v1/exports", Summary: "Serve one more directory by NFS", In: reflect.TypeFor[ExportSpec](), Out: doneType,
			run: body(func(b Backend, r *http.Request, s ExportSpec) (any, error) { return b.CreateExport(r.Context(), s) })},
		{Method: "DELETE", Path: "/v1/exports/{name}", Summary: "Serve a directory no more; its files stay", Query: []string{"dry_run"}, Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) {
				return b.DeleteExport(r.Context(), r.PathValue("name"), flag(r, "dry_run"))
			}},
		{Method: "GET", Path: "/v1/stats", Summary: "The counters of volumes, exports and sessions at one moment", Out: reflect.TypeFor[Stats](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Stats(), nil }},
		{Method: "GET", Path: "/v1/sessions/{id}/trace", Summary: "A session's flight recorder, also of one that ended not long ago", Out: reflect.TypeFor[Trace](),
			run: func(b Backend, r *http.Request) (any, error) { return b.Trace(r.PathValue("id")) }},
		{Method: "GET", Path: "/v1/portals", Summary: "The listening addresses", Out: reflect.TypeFor[[]Portal](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Portals(), nil }},
		{Method: "GET", Path: "/v1/exports", Summary: "The directories served by NFS", Out: reflect.TypeFor[[]Export](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Exports(), nil }},
		{Method: "GET", Path: "/v1/sessions", Summary: "Who is logged in", Out: reflect.TypeFor[[]Session](),
			run: func(b Backend, _ *http.Request) (any, error) { return b.Sessions(), nil }},
		{Method: "DELETE", Path: "/v1/sessions/{id}", Summary: "End a session; a stock initiator logs in again", Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) { return b.CloseSession(r.Context(), r.PathValue("id")) }},
		{Method: "POST", Path: "/v1/drain", Summary: "Take no new sessions, let running commands finish, and end", Out: doneType,
			run: func(b Backend, r *http.Request) (any, error) { return b.Drain(r.Context()) }},
		{Method: "GET", Path: "/healthz", Summary: "Whether the daemon does its work", Out: reflect.TypeFor[map[string]string](),
			run: func(b Backend, r *http.Request) (any, error) {
				err := b.Healthy(r.Context())
				out := map[string]string{"status": "healthy"}
				if err != nil {
					return out, err
				}
				// What is not served is said, and is no failure: a supervisor's restart would not mend it.
				for _, v := range b.Volumes() {
					if v.Problem != "" {
						out["volume "+v.Name] = v.Problem
					}
				}
				for _, t := range b.Targets() {
					if t.Problem != "" {
						out["target "+t.Name] = t.Problem
					}
				}
				for _, e := range b.Exports() {
					if e.Problem != "" {
						out["export "+e.Name] = e.Problem
					}
				}
				return out, nil
			}},
		{Method: "GET", Path: "/readyz", Summary: "Whether the daemon takes sessions", Out: reflect.TypeFor[map[string]string](),
			run: func(b Backend, _ *http.Request) (any, error) {
				return map[string]string{"status": "ready"}, b.Ready()
			}},
		{Method: "GET", Path: "/openapi.json", Summary: "This interface, described", Out: reflect.TypeFor[map[string]any](),
			run: func(Backend, *http.Request) (any, error) { return OpenAPI(), nil }},
	}
}

// OpenAPI is the description of the interface (OpenAPI 3.0), made from the table.
func OpenAPI() map[string]any {
	schemas := map[string]any{}
	paths := map[string]map[string]any{}
	errs := schemaFor(reflect.TypeFor[Error](), schemas)
	for _, r := range Routes() {
		op := map[string]any{"summary": r.Summary, "operationId": operationID(r)}
		var params []any
		for _, part := range strings.Split(r.Path, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				params = append(params, map[string]any{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
			}
		}
		for _, q := range r.Query {
			params = append(params, map[string]any{"name": q, "in": "query", "schema": map[string]any{"type": "boolean"}})
		}
		if params != nil {
			op["parameters"] = params
		}
		if r.In != nil {
			op["requestBody"] = map[string]any{"required": true, "content": content("application/json", schemaFor(r.In, schemas))}
		}
		ok := content("application/json", schemaFor(r.Out, schemas))
		if r.Out == reflect.TypeFor[rawYAML]() {
			ok = content("application/yaml", map[string]any{"type": "string"})
		}
		op["responses"] = map[string]any{
			"200":     map[string]any{"description": "done", "content": ok},
			"default": map[string]any{"description": "refused, with one sentence why", "content": content("application/json", errs)},
		}
		if paths[r.Path] == nil {
			paths[r.Path] = map[string]any{}
		}
		paths[r.Path][strings.ToLower(r.Method)] = op
	}
	return map[string]any{
		"openapi":    "3.0.3",
		"info":       map[string]any{"title": "Sluice administration", "version": "1"},
		"paths":      paths,
		"components": map[string]any{"schemas": schemas},
	}
}

func content(kind string, schema map[string]any) map[string]any {
	return map[string]any{kind: map[string]any{"schema": schema}}
}

// operationID is the method and the path in one word: "getV1Volumes".
func operationID(r Route) string {
	id := strings.ToLower(r.Method)
	for _, p := range strings.FieldsFunc(r.Path, func(c rune) bool { return strings.ContainsRune("/{}.", c) }) {
		id += strings.ToUpper(p[:1]) + p[1:]
	}
	return id
}

// schemaFor describes a Go type as encoding/json writes it; named structs go to the shared schemas.
func schemaFor(t reflect.Type, shared map[string]any) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		s := schemaFor(t.Elem(), shared)
		s["nullable"] = true
		return s
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaFor(t.Elem(), shared)}
	case reflect.Map:
		return map[string]any{"type": "object"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Struct:
		if t.PkgPath() == "time" {
			return map[string]any{"type": "string", "format": "date-time"}
		}
		if _, done := shared[t.Name()]; !done {
			props, required := map[string]any{}, []string{}
			for i := range t.NumField() {
				name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
				if name == "-" {
					continue
				}
				props[name] = schemaFor(t.Field(i).Type, shared)
				if opts == "" {
					required = append(required, name)
				}
			}
			shared[t.Name()] = map[string]any{"type": "object", "properties": props, "required": required}
		}
		return map[string]any{"$ref": "#/components/schemas/" + t.Name()}
	}
	return map[string]any{"type": "integer"}
}
