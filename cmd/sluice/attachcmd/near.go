package attachcmd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/transport/fabric"
)

// nearest is the help of --provider where none is the default.
const nearest = "what RDMA goes through, where the URL does not say it: iwarp (software, over TCP), verbs (RDMA adapters), shm (memory shared with a daemon of this host); " +
	"by default shm where this user may connect to such a daemon, else iwarp"

// nearestByDefault makes --provider of a command that attaches say nothing by default.
func nearestByDefault(c *cobra.Command) {
	f := c.Flags().Lookup("provider")
	_ = f.Value.Set("") // a string takes any
	f.DefValue, f.Usage = "", nearest
}

// near is a URL, or several with commas, by the shortest way: one that names no provider, of a daemon on this host that offers shared memory to
// this user, names that. What it returns is the URL as it was where there is no other way.
func (o *options) near(ctx context.Context, urls string) string {
	if o.conn.Provider != "" {
		return urls
	}
	if nfs.IsURL(urls) {
		t, err := nfs.ParseURL(urls)
		if err != nil || !t.RDMA || t.Provider != "" {
			return urls
		}
		port := t.Port
		if port == 0 {
			port = nfs.PortRDMA
		}
		return withProvider(urls, strings.Contains(urls, "?"), fabric.Near(ctx, net.JoinHostPort(t.Host, strconv.Itoa(port))))
	}
	all := strings.Split(urls, ",")
	for i, s := range all {
		u, err := block.ParseURL(s)
		if err != nil || !u.ISER || u.Provider != "" || u.Exposure != "" {
			continue
		}
		// Behind the target's name: what is before the host may hold a question mark of a secret.
		at := strings.LastIndex(strings.ToLower(s), "/"+u.Target)
		all[i] = withProvider(s, at >= 0 && strings.Contains(s[at:], "?"), fabric.Near(ctx, u.Addr()))
	}
	return strings.Join(all, ",")
}

func withProvider(url string, has bool, provider string) string {
	switch {
	case provider == "":
		return url
	case has:
		return url + "&provider=" + provider
	}
	return url + "?provider=" + provider
}

// byNearest does something with a URL by the shortest way, and by the one that it names where that does not lead there: the daemon that has the
// socket may be another one. begun is to tell whether it did.
func (o *options) byNearest(ctx context.Context, url string, begun func() bool, do func(url string) error) error {
	by := o.near(ctx, url)
	err := do(by)
	if err == nil || by == url || begun() || ctx.Err() != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "sluice: not through shared memory:", err) // the helper's log
	return do(url)
}
