package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/unixsock"
)

// Limits of the interface: its peers are the operator's own tools, but a mistake of theirs must not hurt the data path.
const (
	maxBody       = 1 << 20          // bytes of a request
	headerTimeout = 10 * time.Second // for a request's header
	maxConns      = 64               // connections at a time: a busy monitoring system has a handful
)

// Server serves a Backend on a unix socket, and to other machines over TLS if asked to.
type Server struct {
	http  *http.Server
	tls   *http.Server // nil without a TLS listener
	log   *zap.Logger
	audit *zap.Logger
}

// New makes a server. metrics serves GET /metrics; audit gets a line for every request that may change something and for
// every peer that is refused.
func New(b Backend, metrics http.Handler, log, audit *zap.Logger) *Server {
	// What a peer can cause before it is known is bounded.
	bounded := log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, 10*time.Second, 10, 0)
	}))
	s := &Server{log: bounded, audit: audit}
	s.http = &http.Server{
		Handler:           s.admit(Handler(b, metrics)),
		ReadHeaderTimeout: headerTimeout,
		MaxHeaderBytes:    64 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if cr, err := credentials(c); err == nil {
				ctx = context.WithValue(ctx, credKey{}, cr)
			}
			return ctx
		},
		ErrorLog: zap.NewStdLog(bounded),
	}
	s.tls = &http.Server{Handler: s.http.Handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: s.http.ErrorLog}
	return s
}

// TLS is what the listener for other machines needs: who has no certificate that ClientCA signed does not get past the
// handshake.
type TLS struct{ Cert, Key, ClientCA string } // PEM files

// Config reads the files.
func (t TLS) Config() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("admin: certificate and key: %w", err)
	}
	pem, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("admin: client CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("admin: %s holds no certificate", t.ClientCA)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}, nil
}

// ServeTLS answers peers with certificates until Close; it returns nil then.
func (s *Server) ServeTLS(l net.Listener, c *tls.Config) error {
	err := s.tls.Serve(tls.NewListener(&bounded{Listener: l, slots: make(chan struct{}, maxConns)}, c))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Listen makes the socket at path, which only its owner may connect to; a dead socket of this user is replaced.
func Listen(path string) (net.Listener, error) {
	l, err := unixsock.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return l, nil
}

// Serve answers until Close; it returns nil then.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(&bounded{Listener: l, slots: make(chan struct{}, maxConns)})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close lets running requests finish until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	var errs []error
	for _, h := range []*http.Server{s.http, s.tls} {
		if err := h.Shutdown(ctx); err != nil {
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}

type credKey struct{}

// credentials are the user and group of the process at the other end, as the kernel knows them (unix(7), SO_PEERCRED).
func credentials(c net.Conn) (*unix.Ucred, error) {
	u, ok := c.(interface{ Unwrap() net.Conn })
	if ok {
		c = u.Unwrap()
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("admin: not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cr *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cr, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, err
	}
	return cr, cerr
}

// peer names the client for the audit log. ok says whether it may use the interface.
func peer(r *http.Request) (who string, ok bool) {
	if r.TLS != nil {
		if len(r.TLS.VerifiedChains) == 0 {
			return r.RemoteAddr + " without a certificate", false
		}
		c := r.TLS.VerifiedChains[0][0]
		return fmt.Sprintf("%s (certificate %s, from %s)", c.Subject.CommonName, c.SerialNumber, r.RemoteAddr), true
	}
	cr, known := r.Context().Value(credKey{}).(*unix.Ucred)
	if !known {
		return "a process without credentials", false
	}
	return fmt.Sprintf("uid %d, pid %d", cr.Uid, cr.Pid), cr.Uid == 0 || int(cr.Uid) == os.Geteuid()
}

// admit lets in root, the daemon's own user and holders of a certificate. Every request that may change something goes to the audit
// log, with its outcome.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := peer(r)
		if !ok {
			s.log.Warn("admin request refused", zap.String("path", r.URL.Path), zap.String("peer", who))
			reply(w, http.StatusForbidden, &Error{Msg: "only root, the daemon's own user and holders of a client certificate may use this interface"})
			return
		}
		if r.TLS != nil && strings.HasPrefix(r.URL.Path, "/debug/") {
			reply(w, http.StatusForbidden, &Error{Msg: "profiles are for the socket on the daemon's own machine"})
			return
		}
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(sw, r)
		if r.Method != http.MethodGet {
			s.audit.Info("admin request", zap.String("request", r.Method+" "+r.URL.RequestURI()), zap.String("peer", who), zap.Int("status", sw.status))
		}
	})
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Handler is the interface without a socket or credentials.
func Handler(b Backend, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	for _, rt := range Routes() {
		mux.HandleFunc(rt.Method+" "+rt.Path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			out, err := rt.run(b, r)
			if err != nil {
				fail(w, err)
				return
			}
			if raw, ok := out.(rawYAML); ok {
				w.Header().Set("Content-Type", "application/yaml")
				_, _ = w.Write(raw) // the peer went away: nothing to do
				return
			}
			reply(w, http.StatusOK, out)
		})
	}
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return mux
}

func fail(w http.ResponseWriter, err error) {
	var e *Error
	if errors.As(err, &e) && e.Kind != 0 {
		reply(w, int(e.Kind), e)
		return
	}
	reply(w, http.StatusInternalServerError, &Error{Msg: err.Error()})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the peer went away: nothing to do
}

// decode reads a JSON body strictly: a misspelt key must not be ignored.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return &Error{Invalid, "the request's body is not what this route takes: " + strings.TrimPrefix(err.Error(), "json: ")}
	}
	return nil
}

func flag(r *http.Request, name string) bool {
	on, err := strconv.ParseBool(r.URL.Query().Get(name))
	return err == nil && on
}

// bounded is a listener that holds back connections beyond its slots.
type bounded struct {
	net.Listener
	slots chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	b.slots <- struct{}{}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &slotConn{Conn: c, free: b.slots}, nil
}

type slotConn struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

// Unwrap is the connection below, for its credentials.
func (c *slotConn) Unwrap() net.Conn { return c.Conn }

// Close frees the slot once: net/http may close a connection from several places.
func (c *slotConn) Close() error {
	c.once.Do(func() { <-c.free })
	return c.Conn.Close()
}
