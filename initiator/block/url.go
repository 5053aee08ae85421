package block

import (
	"fmt"
	"net"
	"net/url"
	"os"
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
// scheme iser), depth. A secret may be given in LIBISCSI_CHAP_PASSWORD instead of the URL, as libiscsi has it.
type URL struct {
	ISER         bool
	Host, Port   string
	Target       string
	LUN          uint16
	Initiator    string // "" for the Initiator's own
	Own, Theirs  iscsi.Secret
	HeaderDigest bool
	DataDigest   bool
	Depth        int // 0 for the default
}

// ErrURL is a URL that cannot be used. It never repeats the secret.
type ErrURL struct{ Detail string }

func (e *ErrURL) Error() string { return "block: bad URL: " + e.Detail }

func badURL(format string, a ...any) error { return &ErrURL{Detail: fmt.Sprintf(format, a...)} }

// Addr is "host:port", with brackets around an IPv6 address.
func (u *URL) Addr() string { return net.JoinHostPort(u.Host, u.Port) }

// String is the URL without any secret, for logs.
func (u *URL) String() string {
	var b strings.Builder
	b.WriteString(map[bool]string{true: "iser://", false: "iscsi://"}[u.ISER])
	if u.Own.Name != "" {
		b.WriteString(url.PathEscape(u.Own.Name) + "%***@")
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
	rest, query, _ := strings.Cut(rest, "?")
	rest, path, _ := strings.Cut(rest, "/")
	// net/url is no help with the authority: in libiscsi's form the percent sign separates user and secret.
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, secret, has := strings.Cut(rest[:at], "%")
		if !has {
			user, secret, has = strings.Cut(rest[:at], ":")
		}
		if !has {
			secret = os.Getenv("LIBISCSI_CHAP_PASSWORD")
		}
		u.Own, rest = iscsi.Secret{Name: user, Secret: secret}, rest[at+1:]
		if user == "" || secret == "" {
			return nil, badURL("a CHAP user name needs a secret and a secret a name")
		}
	} else if name := os.Getenv("LIBISCSI_CHAP_USERNAME"); name != "" {
		u.Own = iscsi.Secret{Name: name, Secret: os.Getenv("LIBISCSI_CHAP_PASSWORD")}
	}
	if err := u.portal(rest); err != nil {
		return nil, err
	}
	if err := u.unit(path); err != nil {
		return nil, err
	}
	return u, u.options(query)
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
			return badURL("%q is no IPv6 address", host)
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
		return badURL("%q is no port", u.Port)
	}
	return nil
}

func (u *URL) unit(path string) error {
	if path = strings.TrimSuffix(path, "/"); path == "" {
		return nil
	}
	name, lun, ok := strings.Cut(path, "/")
	u.Target = strings.ToLower(name)
	if err := iscsi.CheckName(u.Target); err != nil {
		return badURL("%v", err)
	}
	if !ok {
		return nil
	}
	// Single-level LUNs of the flat space have 14 bits (SAM-5 section 4.7.7).
	n, err := strconv.ParseUint(lun, 0, 14)
	if err != nil {
		return badURL("%q is no LUN; 0 to 16383 are", lun)
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
			u.Theirs.Name = v
		case "target_password":
			u.Theirs.Secret = v
		case "initiator":
			if err := iscsi.CheckName(v); err != nil {
				return badURL("%v", err)
			}
			u.Initiator = v
		case "iser":
			u.ISER = true
		case "depth":
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > MaxDepth {
				return badURL("depth must be 1 to %d", MaxDepth)
			}
			u.Depth = n
		default:
			return badURL("unknown option %q", k)
		}
	}
	if u.Theirs.Secret != "" && u.Own.Name == "" {
		return badURL("target_password needs a user and a secret of ours as well")
	}
	return nil
}
