-- The role of a signer process: it reads what it compares with, and writes nothing. Run it as the owner of the tables,
-- in the service's database, after `release`; then set a password: \password purser_signer
-- The journal is a database of its own: CREATE ROLE purser_journal LOGIN; CREATE DATABASE purser_journal OWNER purser_journal;
CREATE ROLE purser_signer LOGIN CONNECTION LIMIT 100;
ALTER ROLE purser_signer SET default_transaction_read_only = on;
GRANT SELECT ON signing_intents, spending_holds, wallets, wallet_keys, key_transfers, key_store, unsealed_row_permits
    TO purser_signer;
