package block

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// DefaultPort is the port of both transports.
const DefaultPort = "3260"

// URL names a portal, a target and a logical unit:
//
//	iser://[user[%secret]@]host[:port]/target-name/lun[?key=value&...]
//	iscsi://...
//
// Discovery needs the portal only. Keys: header_digest and data_digest (none, crc32c), target_user and
// target_password (the target's proof, for mutual CHAP), initiator (the initiator's name), iser (the same as the
// scheme iser), provider (what RDMA goes through: iwarp, verbs, shm), socket (of shm, the path of the target's socket
// on this host, in place of the one that stands for host and port; the host may be left out then), exposure (what
// the target may reach through an RDMA adapter: windows, whole-slab), depth. A secret may be given in LIBISCSI_CHAP_PASSWORD instead of the URL, and the target's in
// LIBISCSI_CHAP_TARGET_USERNAME and LIBISCSI_CHAP_TARGET_PASSWORD, as libiscsi has it.
type URL struct {
	ISER         bool
	Host, Port   string
	Target       string
	LUN          uint16
	Initiator    string // "" for the Initiator's own
	CHAP         Secret // ours
	MutualCHAP   Secret // what the target proves itself with
	HeaderDigest bool
	DataDigest   bool
	Depth        int    // 0 for the default
	Provider     string // of the fabric, "" for the Initiator's own
	Socket       string // what the provider dials instead of host and port, "" for those
	Exposure     string // likewise

	hide bool // while it is read: what cannot be read may be a part of a secret
}

// URLError is a URL that cannot be used. It repeats no part of a secret.
type URLError struct{ Detail string }

func (e *URLError) Error() string { return "block: bad URL: " + e.Detail }

func badURL(format string, a ...any) error { return &URLError{Detail: fmt.Sprintf(format, a...)} }

// Addr is "host:port", with brackets around an IPv6 address.
func (u *URL) Addr() string { return net.JoinHostPort(u.Host, u.Port) }

// at is where a session is, as its provider dials it.
func (u *URL) at() string {
	if u.Socket != "" {
		return u.Socket
	}
	return u.Addr()
}

// String is the URL without any secret, for logs.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(map[bool]string{true: "iser://", false: "iscsi://"}[u.ISER])
	if u.CHAP.Name != "" {
		name := u.CHAP.Name
		if strings.Contains(name, ":") && iscsi.CheckName(name) != nil {
			name = "***" // perhaps user:secret with a percent sign in the secret
		}
		b.WriteString(url.PathEscape(name) + "%***@")
	}
	b.WriteString(u.Addr())
	if u.Target != "" {
		fmt.Fprintf(&b, "/%s/%d", u.Target, u.LUN)
	}
	return b.String()
}

// ParseURL reads a URL. The target may be missing; Open then refuses it and Discover does not care.
func ParseURL(s string) (*URL, error) {
	u := &URL{}
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		return nil, badURL("it must begin with iser:// or iscsi://")
	case scheme == "iser":
		u.ISER = true
	case scheme != "iscsi":
		return nil, badURL("unknown scheme %q; iser and iscsi are known", scheme)
	}
	// An error must not print a part of a secret that was taken for something else.
	u.hide = strings.ContainsAny(s, "@%") || strings.Contains(s, "password")
	user, rest, has := userinfo(rest)
	rest, query, _ := strings.Cut(rest, "?")
	rest, unit, _ := strings.Cut(rest, "/")
	if err := u.secrets(user, has); err != nil {
		return nil, err
	}
	if err := u.options(query); err != nil {
		return nil, err
	}
	if rest == "" && u.Socket != "" {
		rest = "localhost"
	}
	if err := u.portal(rest); err != nil {
		return nil, err
	}
	if err := u.unit(unit); err != nil {
		return nil, err
	}
	u.hide = false
	return u, nil
}

// userinfo splits what is before the host from the rest of a URL. Secrets are written as they are, so that one may hold any
// of "/?@": what ends it is the last @ before the target's name, or before the options where no target is named.
func userinfo(s string) (user, rest string, ok bool) {
	end := len(s)
	low := strings.ToLower(s)
	for _, sep := range []string{"/iqn.", "/eui.", "/naa."} {
		if k := strings.Index(low, sep); k >= 0 {
			end = min(end, k)
		}
	}
	if end == len(s) {
		for _, key := range []string{"header_digest", "data_digest", "target_user", "target_password", "initiator", "iser", "provider", "socket", "exposure", "depth"} {
			if k := strings.Index(s, "?"+key); k >= 0 {
				end = min(end, k)
			}
		}
	}
	at := strings.LastIndexByte(s[:end], '@')
	if at < 0 {
		return "", s, false
	}
	return s[:at], s[at+1:], true
}

// secrets takes the CHAP names and secrets of the URL and, where it has none, of the environment. net/url is no help with
// the former: in libiscsi's form the percent sign separates user and secret.
func (u *URL) secrets(info string, has bool) error {
	if has {
		user, secret, ok := strings.Cut(info, "%")
		if !ok {
			user, secret, ok = strings.Cut(info, ":")
		}
		if !ok {
			secret = os.Getenv("LIBISCSI_CHAP_PASSWORD")
		}
		u.CHAP = Secret{Name: user, Secret: secret}
		if user == "" || secret == "" {
			return badURL("a CHAP user name needs a secret and a secret a name")
		}
	} else if name := os.Getenv("LIBISCSI_CHAP_USERNAME"); name != "" {
		u.CHAP = Secret{Name: name, Secret: os.Getenv("LIBISCSI_CHAP_PASSWORD")}
		if u.CHAP.Secret == "" {
			return badURL("LIBISCSI_CHAP_USERNAME needs LIBISCSI_CHAP_PASSWORD")
		}
	}
	if secret := os.Getenv("LIBISCSI_CHAP_TARGET_PASSWORD"); secret != "" {
		u.MutualCHAP = Secret{Name: os.Getenv("LIBISCSI_CHAP_TARGET_USERNAME"), Secret: secret}
	}
	return nil
}

// quote shows a part of the URL that cannot be used, unless it may be a part of a secret.
func (u *URL) quote(s string) string {
	if u.hide {
		return "what is there (not shown, it may be part of a secret)"
	}
	return strconv.Quote(s)
}

func (u *URL) portal(s string) error {
	u.Host, u.Port = s, DefaultPort
	switch {
	case strings.HasPrefix(s, "["):
		host, port, ok := strings.Cut(s[1:], "]")
		if !ok || port != "" && port[0] != ':' {
			return badURL("an IPv6 address must be written [address]:port")
		}
		u.Host = host
		if port != "" {
			u.Port = port[1:]
		}
		if ip, _, _ := strings.Cut(host, "%"); net.ParseIP(ip) == nil {
			return badURL("%s is no IPv6 address", u.quote(host))
		}
	case strings.Count(s, ":") > 1:
		return badURL("an IPv6 address must be written in brackets")
	case strings.Contains(s, ":"):
		u.Host, u.Port, _ = strings.Cut(s, ":")
	}
	if u.Host == "" {
		return badURL("the host is missing")
	}
	if n, err := strconv.ParseUint(u.Port, 10, 16); err != nil || n == 0 {
		return badURL("%s is no port", u.quote(u.Port))
	}
	return nil
}

func (u *URL) unit(s string) error {
	if s = strings.TrimSuffix(s, "/"); s == "" {
		return nil
	}
	name, lun, ok := strings.Cut(s, "/")
	u.Target = strings.ToLower(name)
	if err := iscsi.CheckName(u.Target); err != nil {
		if u.hide {
			return badURL("the target's name is no iSCSI name")
		}
		return badURL("%v", err)
	}
	if !ok {
		return nil
	}
	// Single-level LUNs of the flat space have 14 bits (SAM-5 section 4.7.7).
	n, err := strconv.ParseUint(lun, 0, 14)
	if err != nil {
		return badURL("%s is no LUN; 0 to 16383 are", u.quote(lun))
	}
	u.LUN = uint16(n)
	return nil
}

func (u *URL) options(query string) error {
	q, err := url.ParseQuery(query)
	if err != nil {
		return badURL("the part after the question mark cannot be read")
	}
	for k, vs := range q {
		v := vs[len(vs)-1]
		switch k {
		case "header_digest", "data_digest":
			on := strings.EqualFold(v, "crc32c")
			if !on && !strings.EqualFold(v, "none") {
				return badURL("%s must be crc32c or none", k)
			}
			if k == "header_digest" {
				u.HeaderDigest = on
			} else {
				u.DataDigest = on
			}
		case "target_user":
			u.MutualCHAP.Name = v
		case "target_password":
			u.MutualCHAP.Secret = v
		case "initiator":
			if err := iscsi.CheckName(v); err != nil {
				if u.hide {
					return badURL("the initiator's name is no iSCSI name")
				}
				return badURL("%v", err)
			}
			u.Initiator = v
		case "iser":
			u.ISER = true
		case "provider":
			if v == "" {
				return badURL("provider names none")
			}
			u.Provider = v
		case "socket":
			if !filepath.IsAbs(v) {
				return badURL("socket is no absolute path")
			}
			u.Socket = v
		case "exposure":
			if v == "" {
				return badURL("exposure names none")
			}
			u.Exposure = v
		case "depth":
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > MaxDepth {
				return badURL("depth must be 1 to %d", MaxDepth)
			}
			u.Depth = n
		default:
			return badURL("unknown option: %s", u.quote(k))
		}
	}
	if u.Provider != "" && !u.ISER {
		return badURL("provider is for iser://; iscsi:// goes over TCP")
	}
	if u.Socket != "" && u.Provider == "" {
		return badURL("socket needs the provider that it is of: provider=shm")
	}
	if u.Exposure != "" && !u.ISER {
		return badURL("exposure is for iser://; iscsi:// exposes no memory")
	}
	if u.MutualCHAP.Name != "" && u.MutualCHAP.Secret == "" {
		return badURL("target_user needs target_password, or the target would not be asked for its proof")
	}
	if q.Has("target_password") && u.CHAP.Name == "" {
		return badURL("target_password needs a user and a secret of ours as well")
	}
	return nil
}

// Secret is one end's proof in CHAP (RFC 7143 section 12.1.3): a name and what goes with it.
type Secret struct{ Name, Secret string }

// String keeps the secret out of logs.
func (s Secret) String() string { return s.Name + ":***" }

// GoString does so for %#v.
func (s Secret) GoString() string { return "block.Secret{" + strconv.Quote(s.Name) + "}" }
