# The image of the service: docker build --platform=linux/amd64 --build-arg=VERSION=… .
# Any builder takes it, also one without BuildKit. .dockerignore lists the sources.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY kit/go.mod ./kit/
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w -buildid= -X main.version=$VERSION" -o /server ./cmd/server

# A static binary and root certificates, a user by number, and nothing to log in to.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /server /server
USER 65532:65532
ENTRYPOINT ["/server"]
