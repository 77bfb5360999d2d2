package pubsublocal

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// iamPolicies stores the policies of topics, subscriptions, snapshots and
// schemas. It does not enforce them: it never checks who the caller is.
type iamPolicies struct {
	iampb.UnimplementedIAMPolicyServer

	exists func(resource string) bool

	mu       sync.Mutex
	policies map[string]*iampb.Policy // guarded by mu: by full name; a policy is replaced, never changed
	changes  uint64                   // guarded by mu: number of SetIamPolicy calls; an etag is the number of its call
}

// newIAMPolicies returns an empty store. exists reports whether a resource has
// this full name. It is called without a lock held.
func newIAMPolicies(exists func(resource string) bool) *iamPolicies {
	return &iamPolicies{exists: exists, policies: map[string]*iampb.Policy{}}
}

// forget removes the policy of a deleted resource. A new resource of the same
// name starts without a policy.
func (p *iamPolicies) forget(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.policies, resource)
}

// GetIamPolicy implements iampb.IAMPolicyServer.
func (p *iamPolicies) GetIamPolicy(_ context.Context, r *iampb.GetIamPolicyRequest) (*iampb.Policy, error) {
	if err := p.find(r.GetResource()); err != nil {
		return nil, err
	}
	if err := checkPolicyVersion("options.requested_policy_version", r.GetOptions().GetRequestedPolicyVersion()); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.get(r.GetResource()), nil
}

// SetIamPolicy implements iampb.IAMPolicyServer.
func (p *iamPolicies) SetIamPolicy(_ context.Context, r *iampb.SetIamPolicyRequest) (*iampb.Policy, error) {
	if err := p.find(r.GetResource()); err != nil {
		return nil, err
	}
	if r.GetPolicy() == nil {
		return nil, status.Error(codes.InvalidArgument, "policy: is required; an empty one removes all bindings")
	}
	if err := checkPolicyMask(r); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	current := p.get(r.GetResource())
	// Without an etag, the caller overwrites changes that others have made
	// since its read.
	if etag := r.GetPolicy().GetEtag(); len(etag) > 0 && string(etag) != string(current.GetEtag()) {
		return nil, status.Error(codes.Aborted, "policy.etag: the policy was changed since it was read; read it again and repeat the change")
	}
	set := proto.CloneOf(r.GetPolicy())
	if mask := r.GetUpdateMask().GetPaths(); len(mask) > 0 && !slices.Contains(mask, "bindings") {
		set.Bindings = current.GetBindings()
	}
	set.Version = max(set.GetVersion(), 1)
	if err := checkPolicy(set); err != nil {
		return nil, err
	}
	p.changes++
	set.Etag = policyEtag(p.changes)
	p.policies[r.GetResource()] = set
	return set, nil
}

// TestIamPermissions implements iampb.IAMPolicyServer. It grants all requested permissions.
func (p *iamPolicies) TestIamPermissions(_ context.Context, r *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	if err := p.find(r.GetResource()); err != nil {
		return nil, err
	}
	for _, permission := range r.GetPermissions() {
		if strings.Contains(permission, "*") {
			return nil, status.Errorf(codes.InvalidArgument, "permissions: %q has a wildcard", permission)
		}
	}
	return &iampb.TestIamPermissionsResponse{Permissions: r.GetPermissions()}, nil
}

// get returns the policy of a resource. The caller must not change it. It is
// called with mu held.
func (p *iamPolicies) get(resource string) *iampb.Policy {
	if policy := p.policies[resource]; policy != nil {
		return policy
	}
	// It has an etag, so that of two callers who add the first binding only one
	// succeeds.
	return &iampb.Policy{Etag: policyEtag(0)}
}

func (p *iamPolicies) find(resource string) error {
	part := strings.Split(resource, "/")
	if len(part) != 4 || part[0] != "projects" || part[1] == "" || part[3] == "" ||
		!slices.Contains([]string{"topics", "subscriptions", "snapshots", "schemas"}, part[2]) {
		return status.Errorf(codes.InvalidArgument,
			"resource: %q is not the name of a topic, subscription, snapshot or schema, such as projects/p/topics/t", resource)
	}
	if !p.exists(resource) {
		return notFound(strings.TrimSuffix(part[2], "s"), resource)
	}
	return nil
}

func checkPolicyMask(r *iampb.SetIamPolicyRequest) error {
	for _, path := range r.GetUpdateMask().GetPaths() {
		if !slices.Contains([]string{"bindings", "etag", "version"}, path) {
			return status.Errorf(codes.InvalidArgument, "update_mask: %q is not one of bindings, etag, version", path)
		}
	}
	return nil
}

func checkPolicy(policy *iampb.Policy) error {
	if err := checkPolicyVersion("policy.version", policy.GetVersion()); err != nil {
		return err
	}
	for i, binding := range policy.GetBindings() {
		if binding.GetRole() == "" {
			return status.Errorf(codes.InvalidArgument, "policy.bindings[%d].role: is required", i)
		}
		if binding.GetCondition() != nil && policy.GetVersion() != 3 {
			return status.Errorf(codes.InvalidArgument, "policy.version: must be 3 because bindings[%d] has a condition", i)
		}
	}
	return nil
}

func checkPolicyVersion(field string, version int32) error {
	if version != 0 && version != 1 && version != 3 {
		return status.Errorf(codes.InvalidArgument, "%s: is %d, must be 1 or 3", field, version)
	}
	return nil
}

func policyEtag(change uint64) []byte { return binary.BigEndian.AppendUint64(nil, change) }
