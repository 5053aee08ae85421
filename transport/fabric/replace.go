package fabric

import (
	"sync"

	"github.com/sluice-storage/sluice/transport"
)

var replaced struct {
	sync.Mutex
	m map[string]func(Options) (transport.Device, error)
}

// Replace makes a provider's devices by other means until the function it returns is called. Only tests call it.
func Replace(provider string, with func(Options) (transport.Device, error)) (restore func()) {
	replaced.Lock()
	defer replaced.Unlock()
	if replaced.m == nil {
		replaced.m = make(map[string]func(Options) (transport.Device, error))
	}
	replaced.m[provider] = with
	return func() {
		replaced.Lock()
		defer replaced.Unlock()
		delete(replaced.m, provider)
	}
}

func replacement(provider string) func(Options) (transport.Device, error) {
	replaced.Lock()
	defer replaced.Unlock()
	return replaced.m[provider]
}
