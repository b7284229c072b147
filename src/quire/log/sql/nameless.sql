-- A branch that lost its name and is kept for its forks says so itself: an append need not look for the thread.
alter table quire.branches add column if not exists nameless boolean not null default false;
alter table quire.branches no force row level security;
alter table quire.threads no force row level security;
update quire.branches b set nameless = true
where not exists (select from quire.threads t where t.tenant = b.tenant and t.branch = b.branch);
alter table quire.branches force row level security;
alter table quire.threads force row level security;
