package dev

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	swaggerui "github.com/swaggo/files/v2"
)

// initializer replaces Swagger UI's swagger-initializer.js, which loads an example.
const initializer = `window.onload = () => SwaggerUIBundle({url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true});`

// explore serves the explorer at a port of its own, on the loopback interface, until stop.
func (s *Stack) explore(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve the explorer: %w", err)
	}
	server := &http.Server{Handler: explorer(s.addr), ReadHeaderTimeout: readyTimeout}
	s.AtStop(server.Close)
	go func() { _ = server.Serve(listener) }() // it returns after Close
	s.Show("explorer", "http://"+listener.Addr().String()+"/explorer/")
	return nil
}

// explorer serves Swagger UI, a page with all methods of the API. All other paths lead to the server at addr, so that
// the page calls its own origin.
func explorer(addr string) http.Handler {
	server := &url.URL{Scheme: "http", Host: addr}
	mux := http.NewServeMux()
	mux.Handle("/", &httputil.ReverseProxy{FlushInterval: time.Second, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(server)
		r.Out.Host = r.In.Host // the server compares it with the origin, to refuse pages of other sites
	}})
	mux.Handle("GET /explorer/", http.StripPrefix("/explorer/", http.FileServerFS(swaggerui.FS)))
	mux.HandleFunc("GET /explorer/swagger-initializer.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write([]byte(initializer)) // the only error is that the browser has left
	})
	return mux
}
