-- What entries are is settled when they are written: nobody may change one. A transaction that names no tenant (it may find
-- the empty text that is left of an earlier one's) sees nothing and writes nothing.
do $$
declare
    found text;
    own text := 'tenant = nullif(current_setting(''quire.tenant'', true), '''')';
begin
    for found in select c.relname from pg_class c join pg_namespace s on s.oid = c.relnamespace
        where s.nspname = 'quire' and c.relkind in ('r', 'p') and c.relname <> 'versions'
    loop
        execute format('alter table quire.%I enable row level security', found);
        execute format('alter table quire.%I force row level security', found);
        execute format('create policy own on quire.%I using (%s) with check (%s)', found, own, own);
        execute format('grant select, insert, update, delete on quire.%I to quire_tenant', found);
        if found like 'entries%' then
            execute format('revoke update on quire.%I from quire_tenant', found);
        end if;
    end loop;
    grant usage on schema quire to quire_tenant;
end
$$;
grant select on quire.versions to quire_tenant;
