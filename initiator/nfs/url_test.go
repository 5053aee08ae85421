package nfs

import (
	"strings"
	"testing"
)

func TestASocketStandsInForHostAndPort(t *testing.T) {
	for url, at := range map[string]string{
		"nfs+rdma:///data?provider=shm&socket=/run/x.sock": "/run/x.sock",
		"nfs+rdma://h/data?provider=shm&socket=/run/x":     "/run/x",
		"nfs+rdma://h/data?provider=shm":                   "h:20049",
		"nfs://h/data?rdma&provider=shm&socket=/x":         "/x",
	} {
		u, err := ParseURL(url)
		if err != nil || u.at(PortRDMA) != at || u.Path != "/data" || u.Provider != "shm" {
			t.Errorf("%s: %+v, %v", url, u, err)
		}
	}
	for url, says := range map[string]string{
		"nfs+rdma:///data?provider=shm":             "names no server",
		"nfs+rdma:///data?socket=/x":                "provider",
		"nfs+rdma://h/data?provider=shm&socket=x":   "absolute",
		"nfs://h/data?provider=shm&socket=/x":       "RDMA",
		"nfs+rdma://h/data?provider=shm&socket=../": "absolute",
	} {
		if u, err := ParseURL(url); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v; want an error that says %q", url, u, err, says)
		}
	}
}
